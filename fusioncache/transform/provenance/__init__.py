"""Finds the source of a region in the user's model, records the region's outcome, and explains misses."""
