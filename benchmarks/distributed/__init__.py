"""Measures the cost of a training step that several devices share, beside other ways to share it."""
