"""How long the slowest of many later steps take, and why."""
