"""Thunder: regions out of a trace, calls of templates back into it, and the ways to register all this."""
