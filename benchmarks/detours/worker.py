"""Traces one model with all shortcuts but one, for some of them in turns, in a process of its own.

Nothing is compiled or run. The garbage collector is as it is in a user's process, but starts each time with no garbage.
"""

from __future__ import annotations

import cProfile
import gc
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from benchmarks.common.counting import use_backend
from benchmarks.common.models import make_model
from benchmarks.common.processes import serve
from benchmarks.common.spec import ModelSpec
from benchmarks.common.thunder_jit import executors
from benchmarks.detours.names import ALL, OWN, is_around, list_shortcuts, name_place
from benchmarks.trace_equality.pieces import Piece
from fusioncache import tracing
from fusioncache.thunder_adapter import installation
from fusioncache.thunder_adapter.installation import TRACING, find_replacements


def measure(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the processor's seconds and the calls of functions, by what is left out: see ``list_names``.

    What is installed is one of the shortcuts by its number, ``ALL`` of them, or ``OWN`` for none of them.
    """
    spec = ModelSpec(**options["model"])
    use_backend(spec.backend)
    model, example = make_model(spec)
    piece = Piece(model, {"executors": executors(spec.backend)}, (example,))
    ways = [ALL, *options["ways"]]
    for way in ways:
        with _installed(way):
            piece.trace()  # so that nothing is left that is done once
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(options["repeat"]):
        for way in ways:
            with _installed(way):
                seconds[way].append(_time(piece))
    return {way: {"seconds": min(seconds[way]), "calls": _count_calls(piece, way)} for way in ways}


def list_names() -> list[dict[str, str]]:
    """Returns group and name of what is taken out, in the order of their numbers: a shortcut, or a group as a whole."""
    single = [{"group": group, "name": name} for group, name, _ in list_shortcuts() if not is_around(group)]
    return [*single, *({"group": group, "name": ""} for group in TRACING if is_around(group))]


@contextmanager
def _installed(way: str) -> Iterator[None]:
    """Installs all shortcuts but those that a way leaves out."""
    tracing.uninstall()
    if way == ALL:
        tracing.install()
    elif way != OWN:
        _install_without(**list_names()[int(way)])
    try:
        yield
    finally:
        tracing.uninstall()


def _install_without(group: str, name: str) -> None:
    tracing.install(each for each in TRACING if not is_around(each))
    for replacement, own, new in installation._installed:
        if name and name_place(replacement) == name and replacement in find_replacements(group):
            replacement.swap(new, own)
    tracing.install(each for each in TRACING if is_around(each) and each != group)


def _time(piece: Piece) -> float:
    gc.collect()
    start = time.process_time()
    piece.trace()
    return time.process_time() - start


def _count_calls(piece: Piece, way: str) -> int:
    """Returns how many functions are called, those written in C among them. It is the same number each time."""
    profiler = cProfile.Profile()
    with _installed(way):
        profiler.enable()
        piece.trace()
        profiler.disable()
    entries: Sequence[Any] = profiler.getstats()
    return sum(entry.callcount for entry in entries)


def _answer(options: Mapping[str, Any]) -> Any:
    return measure(options) if options else list_names()


if __name__ == "__main__":
    serve(_answer)
