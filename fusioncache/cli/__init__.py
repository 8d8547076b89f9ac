"""The command line. Reads the record and the store of earlier runs; importing it never imports torch."""
