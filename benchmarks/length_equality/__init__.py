"""Whether one compiled model is right at every batch and length, and what it compiles for the later ones."""
