"""Attention by another kernel of torch's than the one that Thunder would choose, if the user asks for it."""

NAME = "fusioncache_attention"
"""By which Thunder knows the executor."""
