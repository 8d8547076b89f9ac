"""Why a value cannot be compared, and why a program is not kept."""

from __future__ import annotations


class NoValue(Exception):
    """Something has no value to compare, so that what depends on it cannot be reused. The text is the reason."""


class TooMuch(NoValue):
    """There are too many values, or they are nested too deeply. Unlike another value, this one is never left out."""


class NotKept(Exception):
    """A program that is not kept, because another process could not tell whether it fits or could not run it.

    Its text is the reason in plain words, under which ``stats().programs_refused`` counts it.
    """
