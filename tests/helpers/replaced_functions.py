"""A function and its replacement."""

from functools import wraps


def original():
    return "original"


def shorten(function):
    @wraps(function)
    def shortcut():
        return f"shortened {function()}"

    return shortcut
