"""The cache in memory: templates, compiled programs, the calls of them, and one compile for many."""
