"""The cache in memory: templates, executables, calls of them, and one compile for all ranks."""
