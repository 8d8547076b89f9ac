"""What recompute of the residual stream saves of a GPU's memory, and what it costs."""
