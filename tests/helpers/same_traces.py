"""What Thunder makes of a program, with and without shortcuts in its tracing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import thunder

from benchmarks.equality.traces import read_texts
from fusioncache import tracing

OWN = ("frames", "containers")
"""Shortcuts with which Thunder's own traces are made where those with others are held against them, in half the time.
Whether traces stay the same with these is for ``test_trace_equality.py``, ``test_fast_tracing.py`` and
``test_natives.py``."""


def trace(program: Callable[..., Any], *args: Any, **kwargs: Any) -> list[str]:
    """Returns the text of every trace, from the prologue's to the epilogue's, or what is raised."""
    compiled = thunder.jit(program)
    try:
        compiled(*args, **kwargs)
    except Exception as error:
        return [type(error).__name__, re.sub("0x[0-9a-f]+", "", str(error).partition(" while tracing ")[0])]
    return list(read_texts(compiled).values())


def trace_with(groups: Iterable[str], program: Callable[..., Any], *args: Any, **kwargs: Any) -> list[str]:
    """Returns the same, of tracing with these groups of shortcuts and no others."""
    tracing.uninstall()
    tracing.install(groups)
    try:
        return trace(program, *args, **kwargs)
    finally:
        tracing.uninstall()
