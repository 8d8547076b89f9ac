"""Measurements of what fusioncache gains and costs."""
