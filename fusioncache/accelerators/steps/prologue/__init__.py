"""Thunder's prologues: the same checks in a fraction of the time."""
