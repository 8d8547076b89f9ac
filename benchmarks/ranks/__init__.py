"""What the ranks of a job compile between them."""
