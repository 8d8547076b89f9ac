"""Imports the names of Thunder that other folders use, and checks what this Thunder supports."""
