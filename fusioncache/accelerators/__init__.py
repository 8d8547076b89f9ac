"""What makes Thunder with templates faster still, each in a folder of its own."""
