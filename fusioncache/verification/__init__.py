"""Verify mode: what a template computes is compared with what each of its regions computes on its own."""
