"""Measures the first step of a process with empty caches, and of a second one with the caches that it left."""
