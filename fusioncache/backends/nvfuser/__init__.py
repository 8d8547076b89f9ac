"""nvFuser kernels, launched without nvFuser: cubins, and a recipe of the launches of one run."""
