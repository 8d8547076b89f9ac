"""A store of many templates, and the commands that look into it."""
