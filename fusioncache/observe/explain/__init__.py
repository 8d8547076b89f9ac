"""Explains why two keys differ, by the changes between their ingredients. Pure: reads only canonical texts."""
