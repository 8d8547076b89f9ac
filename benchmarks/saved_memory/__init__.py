"""What backward's safety costs in memory."""
