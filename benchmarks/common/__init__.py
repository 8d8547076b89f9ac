"""Shared parts of the benchmarks: processes, models, options, counting, tables."""
