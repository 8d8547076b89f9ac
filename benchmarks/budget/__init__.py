"""Measures first and later steps of the current checkout, as ratios to those of a base: see ``__main__``."""
