"""Host time of a later step."""
