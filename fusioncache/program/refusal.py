"""Why a program is not kept."""

from __future__ import annotations


class NotKept(Exception):
    """A program that is not kept, because another process could not tell whether it fits or could not run it.

    Its text is the reason in plain words, under which ``stats().programs_refused`` counts it.
    """
