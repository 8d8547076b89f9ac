"""What happened in a run: counted, written down, and explained."""
