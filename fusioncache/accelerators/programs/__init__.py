"""Stored programs: their keys, the reads that are recorded and compared, and programs as data."""
