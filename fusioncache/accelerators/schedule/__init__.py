"""Pure: in which order computing calls and collectives run. Knows neither torch nor Thunder."""
