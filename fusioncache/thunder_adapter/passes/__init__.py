"""Shorter ways to what Thunder's passes over traces compute by detours, a group a file.

Each function that shortens one takes a function of Thunder's and returns one that does the same in fewer steps. Where
the shorter way does not apply, that calls the original.
"""
