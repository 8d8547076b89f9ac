"""Verify mode compares what a template computes with what each of its regions computes on its own."""
