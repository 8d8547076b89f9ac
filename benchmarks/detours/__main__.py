"""What each detour of Thunder's tracing costs: a model is traced with all shortcuts, and with all but one.

Seconds are the processor's, the least of some; calls are those of all functions, counted once. Shortcuts share work
with each other: what two gain together may be more than the sum of both, or less. Nothing is compiled or run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import click

from benchmarks.common import processes
from benchmarks.common.cores import share_cores
from benchmarks.common.environment import inspect_machine
from benchmarks.common.options import backend_option, command, json_option
from benchmarks.common.report import console, make_table
from benchmarks.common.results import Point, make_result, say, write_result
from benchmarks.common.spec import MODELS, ModelSpec
from benchmarks.detours.names import ALL, OWN

_WORKER = "benchmarks.detours.worker"


@command(__doc__)
@click.option("--model", type=click.Choice(MODELS), default="llama")
@click.option("--layers", type=click.IntRange(min=1), default=4)
@click.option("--rounds", type=click.IntRange(min=1), default=3, help="The least seconds of so many count.")
@backend_option()
@click.option("--parallel", type=click.IntRange(min=1), default=1, help="Processes at once, each on cores of its own.")
@json_option
def main(json_file: Path | None, model: str, layers: int, rounds: int, backend: str, parallel: int) -> None:
    """Runs the benchmark."""
    machine = inspect_machine(backend)
    spec = ModelSpec(model, layers, machine.backend, machine.device, machine.choose_dtype(model))
    names = processes.call(_WORKER, {})
    ways = [OWN, *map(str, range(len(names)))]
    shares = [ways[number::parallel] for number in range(min(parallel, len(ways)))]
    options = [{"model": asdict(spec), "ways": share, "repeat": rounds} for share in shares]
    with ThreadPoolExecutor(len(shares), initializer=share_cores(parallel)) as pool:
        found = list(pool.map(lambda one: processes.call(_WORKER, one), options))
    say(f"{len(names)} shortcuts\n")
    points = [_describe(names, way, share) for share in found for way in share if way != ALL]
    points.sort(key=lambda point: -point["seconds"])
    environment = {**asdict(spec), "rounds": rounds, "parallel": parallel}
    write_result(json_file, make_result(machine.environment, environment, points=points))
    columns = ("<group", "<shortcut", "seconds", "of all", "calls", "of all")
    console().print(make_table("what tracing takes more without a shortcut", None, columns, map(_row, points)))


def _describe(names: Sequence[Mapping[str, str]], way: str, found: Mapping[str, Mapping[str, float]]) -> Point:
    """Returns what one way takes more than the one with all shortcuts in the same process, and that."""
    name = {"group": "", "name": "all"} if way == OWN else names[int(way)]
    more = {unit: found[way][unit] - found[ALL][unit] for unit in ("seconds", "calls")}
    return {**name, **more, "all": dict(found[ALL])}


def _row(point: Point) -> list[str]:
    shares = {unit: f"{point[unit] / point['all'][unit]:.1%}" for unit in ("seconds", "calls")}
    seconds, calls = f"{point['seconds']:.3f}", f"{point['calls']:.0f}"
    return [point["group"], point["name"], seconds, shares["seconds"], calls, shares["calls"]]


if __name__ == "__main__":
    main()
