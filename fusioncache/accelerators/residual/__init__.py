"""Residual streams and their plans. ``sums.py``, ``plans.py`` and ``rebuild.py`` import neither torch nor Thunder."""
