"""Opt-in executor that computes attention with another torch kernel than Thunder would choose: cuDNN's."""

NAME = "fusioncache_attention"
"""The executor's name in Thunder."""
