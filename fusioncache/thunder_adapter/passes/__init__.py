"""Shorter ways through Thunder's passes: ``symbols`` for single operations, ``traces`` for whole traces."""
