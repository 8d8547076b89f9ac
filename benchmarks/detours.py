"""What each detour of Thunder's tracing costs: a model is traced with all shortcuts, and with all but one.

Seconds are the processor's, the least of some; calls are those of all functions, counted once. Shortcuts share work
with each other: what two gain together may be more than the sum of both, or less. Nothing is compiled or run.
"""

from __future__ import annotations

import cProfile
import gc
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import Any

import click

from benchmarks.common import processes
from benchmarks.common.cores import share_cores
from benchmarks.common.counting import use_backend
from benchmarks.common.models import MODELS, ModelSpec, make_model
from benchmarks.common.options import backend_option, command, count_option, json_option, layers_option
from benchmarks.common.runner import Point, begin, pick
from benchmarks.common.thunder_jit import executors
from benchmarks.equality.traces import Piece
from fusioncache import tracing
from fusioncache.thunder_adapter import installation
from fusioncache.thunder_adapter.installation import TRACING, Replacement, find_replacements

ALL, OWN = "all", "none"
"""What is installed where not one of the shortcuts is left out: all of them, or none."""


def name_place(replacement: Replacement) -> str:
    """Returns the name of what a shortcut replaces: of an attribute with its class, or of what is looked up."""
    holder, key = replacement.holder, replacement.key
    if isinstance(key, Enum):
        return key.name
    if not isinstance(key, str):
        return getattr(key, "__qualname__", repr(key))
    return f"{holder.__name__}.{key}" if isinstance(holder, type) else key


def is_around(group: str) -> bool:
    """True if a group stands around others, all of it or none: its parts rely on each other."""
    return any(each.around for each in find_replacements(group))


def list_shortcuts() -> Iterator[tuple[str, str, Replacement]]:
    """Returns each shortcut after its group and its name."""
    for group in TRACING:
        yield from ((group, name_place(each), each) for each in find_replacements(group))


def measure(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the processor's seconds and the calls of functions, by what is left out: see ``list_names``.

    What is installed is one of the shortcuts by its number, ``ALL`` of them, or ``OWN`` for none of them.
    """
    spec = ModelSpec.read(options["model"])
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


def list_names(_: object = None) -> list[dict[str, str]]:
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


@command(__doc__)
@click.option("--model", type=click.Choice(MODELS), default="llama")
@layers_option(4)
@count_option("--rounds", 3, "The least seconds of so many count.")
@backend_option()
@count_option("--parallel", 1, "Processes at once, each on cores of its own.")
@json_option
def main(json_file: Path | None, model: str, layers: int, rounds: int, backend: str, parallel: int) -> None:
    """Runs the benchmark."""
    run = begin(json_file, {"model": model, "layers": layers, "rounds": rounds, "parallel": parallel}, backend)
    spec = ModelSpec(model, layers, run.machine.backend, run.machine.device, run.machine.choose_dtype(model))
    names = processes.call("benchmarks.detours:list_names", None)
    ways = [OWN, *map(str, range(len(names)))]
    shares = [ways[number::parallel] for number in range(min(parallel, len(ways)))]
    options = [{"model": asdict(spec), "ways": share, "repeat": rounds} for share in shares]
    with ThreadPoolExecutor(len(shares), initializer=share_cores(parallel)) as pool:
        found = list(pool.map(lambda one: processes.call("benchmarks.detours:measure", one), options))
    points = [_describe(names, way, share) for share in found for way in share if way != ALL]
    run.keep(*sorted(points, key=lambda point: -point["seconds"]))
    columns: dict[str, Any] = {"<group": pick("group"), "<shortcut": pick("name")}
    columns |= {"seconds": pick("seconds", digits=3), "calls": pick("calls"), "of all": _divide}
    run.finish("what tracing takes more without a shortcut", columns)


def _describe(names: Sequence[Mapping[str, str]], way: str, found: Mapping[str, Mapping[str, float]]) -> Point:
    """Returns what one way takes more than the one with all shortcuts in the same process, and that."""
    name = {"group": "", "name": "all"} if way == OWN else names[int(way)]
    more = {unit: found[way][unit] - found[ALL][unit] for unit in ("seconds", "calls")}
    return {**name, **more, "all": dict(found[ALL])}


def _divide(point: Point) -> str:
    return ", ".join(f"{point[unit] / point['all'][unit]:.1%}" for unit in ("seconds", "calls"))


if __name__ == "__main__":
    main()
