"""Thunder's own first trace of a program, as text, and the same from a journal of another length."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import thunder
from thunder.core.compile_data import get_compile_data

from fusioncache.accelerators.sizes.hooks import watch_sizes
from fusioncache.accelerators.sizes.journal import Journal, replay
from fusioncache.accelerators.sizes.values import find_sizes
from fusioncache.ir.errors import Declined


class _Enough(Exception):
    """Ends a derivation after its first trace."""


def trace_first(program: Callable[..., Any], *args: Any) -> str:
    """Returns the text of the first trace of the computation, before any pass."""
    texts: list[str] = []
    own = thunder.thunder_general_jit

    def keep(*given: Any, **options: Any) -> Any:
        results = own(*given, **options)
        texts.append(str(results.computation_trace))
        raise _Enough

    with mock.patch.object(thunder, "thunder_general_jit", keep), contextlib.suppress(_Enough):
        thunder.jit(program)(*args)
    (text,) = texts
    return text


def watch(program: Callable[..., Any], *args: Any) -> Journal:
    """Returns what was done with sizes while a program was traced."""
    return watch_first(program, *args)[0]


def watch_first(program: Callable[..., Any], *args: Any) -> tuple[Journal, str]:
    """Returns the same, and the text of the first trace of the computation."""
    found: list[tuple[Journal, str]] = []
    own = thunder.thunder_general_jit

    def keep(*given: Any, **options: Any) -> Any:
        function, *arguments = given
        results, journal = watch_sizes(partial(own, function, **options), get_compile_data(), *arguments)
        found.append((journal, str(results.computation_trace)))
        raise _Enough

    with mock.patch.object(thunder, "thunder_general_jit", keep), contextlib.suppress(_Enough):
        thunder.jit(program)(*args)
    ((journal, text),) = found
    return journal, text


def replay_as(program: Callable[..., Any], journal: Journal, *args: Any) -> str | Declined:
    """Returns the text of the first trace of the computation for other arguments, or why there is none."""
    texts: list[str | Declined] = []

    def keep(*_: Any, **options: Any) -> Any:
        try:
            texts.append(str(replay(journal, find_sizes(args, {}), get_compile_data()).computation))
        except Declined as error:
            texts.append(error)
        raise _Enough

    with mock.patch.object(thunder, "thunder_general_jit", keep), contextlib.suppress(_Enough):
        thunder.jit(program)(*args)
    (text,) = texts
    return text
