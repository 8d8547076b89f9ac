"""Runs Thunder's own tests without and with fusioncache, and compares them test by test."""
