"""The first and the second start of a model on a machine without a GPU."""
