"""The order of computing calls and collectives. ``calls.py`` and ``order.py`` import neither torch nor Thunder."""
