"""Traces that Thunder makes of a program, with and without shortcuts in its tracing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any
from unittest import mock

import thunder
from thunder.core import interpreter

from benchmarks.equality.traces import read_texts
from fusioncache import tracing

OWN = ("frames", "containers")
"""Shortcuts for Thunder's traces when traces with other shortcuts are compared with them. They halve the time.
``test_hostile_programs.py`` checks that these shortcuts do not change traces."""


def trace_with(groups: Iterable[str], program: Callable[..., Any], *args: Any) -> list[str]:
    """Traces with only these groups of shortcuts; returns the text of every trace, or type and message of the error."""
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


class _Enough(BaseException):
    """Raised to end a derivation after its first trace."""


def stop_at_first(act: Callable[..., Any], program: Callable[..., Any], *args: Any) -> Any:
    """Returns the result of a function that is called in place of the one that makes the first trace, which it gets."""
    found, own = [], thunder.thunder_general_jit

    def stop(*given: Any, **options: Any) -> Any:
        found.append(act(partial(own, **options), *given))
        raise _Enough

    with mock.patch.object(thunder, "thunder_general_jit", stop), suppress(_Enough):
        thunder.jit(program)(*args)
    (result,) = found
    return result


def list_interpreted(program, *args):
    with mock.patch.object(interpreter, "_run_frame", wraps=interpreter._run_frame) as run:
        thunder.jit(program)(*args)
    return [call.args[0] for call in run.call_args_list]
