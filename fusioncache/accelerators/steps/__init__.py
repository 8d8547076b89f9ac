"""Makes later steps leaner: shorter calls of Thunder's programs, without redundant operations in them."""
