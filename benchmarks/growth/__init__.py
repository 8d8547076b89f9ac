"""What each further length adds to memory, record and store."""
