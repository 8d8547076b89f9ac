"""Whether a second process trains every model with a stored program, as Thunder does, bit for bit."""
