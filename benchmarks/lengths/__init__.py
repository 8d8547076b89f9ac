"""What a sequence of lengths costs, step by step."""
