"""Measures many hosts that start at once with one S3 server, and fuzzes the decoders of their files."""
