"""Numbers the programs of each function that Thunder compiles."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from fusioncache.cache.generals import Generation
from fusioncache.process import forks
from fusioncache.process.warning import log_errors
from fusioncache.transform.dynamo_graphs import describe_graph, is_graph


class Generations:
    """The programs of the functions that one transform is used for.

    Dynamo graphs that differ only in sizes count as one function, because Dynamo makes one for the first length, and
    another one for all others.
    """

    def __init__(self) -> None:
        self._last: WeakKeyDictionary[Any, Generation] = WeakKeyDictionary()
        self._last_of_graphs: dict[str, Generation] = {}
        self._lock = forks.lock()

    def begin(self, compile_data: Any) -> Generation:
        """Returns the next program of a function.

        Args:
            compile_data: Thunder's data of the function; None if not known.
        """
        if compile_data is None:
            return Generation(object(), 0)
        with self._lock:
            last = self._last.get(compile_data)
            name = last.name if last else _name_function(compile_data.fn)
            last = self._last_of_graphs.get(name, last)
            new = replace(last, number=last.number + 1) if last else Generation(object(), 0, name)
            self._last[compile_data] = new
            if name and is_graph(compile_data.fn):
                self._last_of_graphs[name] = new
            return new

    def last(self, compile_data: Any) -> Generation:
        """Returns the last program of a function."""
        return self._last[compile_data]


def _name_function(function: Any) -> str:
    """Returns a digest of a function's name and code and of its parameters' sizes; empty if it has no code.

    Later processes recognize the function by it. It cannot make a result wrong: it only decides with which regions a
    function's regions are generalized, because a model of other widths has regions of the same skeletons.
    """
    lines: list[str] = []
    with log_errors("a function without a name for later processes"):  # a model's ``named_parameters`` may raise any
        lines = list(describe_graph(function) if is_graph(function) else _describe_function(function))
    return hashlib.sha256("\n".join(lines).encode(errors="replace")).hexdigest() if lines else ""


def _describe_function(function: Any) -> Iterator[str]:
    import torch

    named = type(function) if isinstance(function, torch.nn.Module) else function
    forward = getattr(named, "forward", named)
    code = getattr(forward, "__code__", None)
    if code is None:
        return
    yield f"{named.__module__}.{named.__qualname__} {code.co_code.hex()} {code.co_names} {code.co_varnames}"
    if isinstance(function, torch.nn.Module):
        for name, parameter in function.named_parameters():
            yield f"{name} {tuple(parameter.shape)}"
