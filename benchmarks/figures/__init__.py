"""The documents' tables and plots, made from the results that are kept in ``benchmarks/results``."""
