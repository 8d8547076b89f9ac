"""Compiling ahead of use: all that a store has seen asked for, for this device and these versions."""
