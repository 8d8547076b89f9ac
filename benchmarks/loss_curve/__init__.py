"""Whether a model that ranks share learns as it does in one process."""
