"""Where nvFuser's seconds for a template go, and what its options and ways around its stages would spare."""
