"""What a second process finds of what the first one compiled."""
