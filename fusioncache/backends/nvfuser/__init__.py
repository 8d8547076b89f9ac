"""What nvFuser compiled, launched without nvFuser: cubins, and a recipe that says how one run launches them."""
