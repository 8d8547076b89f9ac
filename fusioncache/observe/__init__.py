"""Observes a run: counts its events, records them, and explains them."""
