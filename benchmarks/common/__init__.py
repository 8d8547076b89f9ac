"""What the benchmarks share: processes, models, options, counting, tables."""
