"""Where in the user's model a region comes from, what became of it, and why it was a miss."""
