"""What a second process finds, and what many processes at once compile."""
