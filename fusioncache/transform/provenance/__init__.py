"""Finds where in the user's model a region comes from, records what became of it, and explains why it was a miss."""
