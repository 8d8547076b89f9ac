"""Models that the project was not written for, trained at random lengths in one process."""
