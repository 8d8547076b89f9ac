"""The documents' tables and plots, made from the results stored in ``benchmarks/results``."""
