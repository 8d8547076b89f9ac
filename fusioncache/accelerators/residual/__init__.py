"""Pure functions from a trace's regions to its residual streams and their plans. Imports neither torch nor Thunder."""
