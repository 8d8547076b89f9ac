"""A later step without what changes nothing: around Thunder's programs, and in them."""
