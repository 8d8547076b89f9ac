"""What the first steps of a process take, and those of a second one with the caches that it left."""
