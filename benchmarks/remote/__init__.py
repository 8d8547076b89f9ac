"""Many hosts that start at once, and one S3 server."""
