"""The cache in memory: templates, executables, the calls of them, and one compile for many."""
