"""Shorter ways to what Thunder's interpreter computes by detours, a group a file.

Each function that shortens one takes a function of the interpreter's and returns one that does the same in fewer steps.
Where the shorter way does not apply, that calls the original.
"""
