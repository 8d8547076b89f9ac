"""The command line. Reads what runs left behind; never imports torch."""
