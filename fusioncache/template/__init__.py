"""Pure functions from a region to its template, its key and its plans. Imports neither torch nor Thunder."""
