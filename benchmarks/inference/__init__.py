"""What generating text costs, a token at a time."""
