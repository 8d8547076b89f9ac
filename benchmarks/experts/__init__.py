"""What mixtures of experts cost, step by step, with other routing in each."""
