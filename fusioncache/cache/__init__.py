"""The cache in memory: templates, executables, calls of them, and compiles shared by ranks."""
