"""How the time to a first step grows with the depth."""
