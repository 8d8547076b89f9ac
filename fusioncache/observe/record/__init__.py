"""The record: events of a run, counted, written to disk, and read again by the commands."""
