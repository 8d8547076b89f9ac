"""Whole programs, kept and checked: what one depends on, what of it was read, and the program as data."""
