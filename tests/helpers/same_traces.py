"""What Thunder makes of a program, with and without shortcuts in its tracing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any
from unittest import mock

import thunder
from thunder.core import interpreter

from benchmarks.equality.traces import read_texts
from fusioncache import tracing

OWN = ("frames", "containers")
"""Shortcuts with which Thunder's own traces are made where those with others are held against them, in half the time.
Whether traces stay the same with these is for ``test_hostile_programs.py``."""


def trace_with(groups: Iterable[str], program: Callable[..., Any], *args: Any) -> list[str]:
    """Traces with these groups of shortcuts alone; returns the text of every trace, or what is raised."""
    tracing.uninstall()
    tracing.install(groups)
    compiled = thunder.jit(program)
    try:
        compiled(*args)
    except Exception as error:
        return [type(error).__name__, re.sub("0x[0-9a-f]+", "", str(error).partition(" while tracing ")[0])]
    finally:
        tracing.uninstall()
    return list(read_texts(compiled).values())


def list_interpreted(program, *args):
    with mock.patch.object(interpreter, "_run_frame", wraps=interpreter._run_frame) as run:
        thunder.jit(program)(*args)
    return [call.args[0] for call in run.call_args_list]
