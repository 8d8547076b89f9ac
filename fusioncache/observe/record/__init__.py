"""The record: what happened in a run, counted, written down, and read again by the commands."""
