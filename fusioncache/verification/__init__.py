"""Verify mode compares the results of a template with those of each of its regions compiled alone."""
