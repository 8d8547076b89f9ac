"""What a second process finds of what the first one compiled, and what it still has to do.

A training step with fusioncache, each time in a fresh process: a cold one with empty cache directories, then a warm one
with those that it left. Ways: ``nothing`` is kept; ``kernel_db``, nvFuser's own database of kernels; ``store``,
fusioncache's. ``--profile`` says where nvFuser's seconds go. All processes must compute the same bits.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import click

from benchmarks.common import processes
from benchmarks.common.environment import inspect_machine
from benchmarks.common.nvfuser_trace import VARIABLE, sum_stages
from benchmarks.common.options import Words, backend_option, command, json_option, repeat_option
from benchmarks.common.report import console, make_table
from benchmarks.common.results import make_result, say, write_result
from benchmarks.common.spec import MODELS, ModelSpec
from benchmarks.warm_start.spec import ONLY_NVFUSER, SECONDS, WAYS, Way

_WORKER = "benchmarks.warm_start.worker"


@dataclass(frozen=True, slots=True)
class _Turn:
    """What the processes of one way said.

    Attributes:
        way: its name.
        found: of the cold process and the warm one, by ``cold`` and ``warm``.
        profile: where nvFuser's seconds went in one more process like the last.
    """

    way: str
    found: Mapping[str, Mapping[str, Any]]
    profile: Mapping[str, Any] | None


@command(__doc__)
@click.option("--model", type=click.Choice(MODELS), default="llama")
@click.option("--layers", type=click.IntRange(min=1), default=2)
@click.option("--ways", type=Words(tuple(WAYS)), default=tuple(WAYS), help="As in nothing,store.")
@backend_option("nvfuser", "inductor")
@repeat_option("Pairs of processes; the median counts.")
@click.option("--steps", type=click.IntRange(min=0), default=10, help="Later steps to time, after as many untimed.")
@click.option("--profile/--no-profile", default=False, help="One more process each, with nvFuser's own trace.")
@json_option
def main(
    json_file: Path | None, ways: Sequence[str], repeat: int, profile: bool, model: str, backend: str, **options: Any
) -> None:
    """Runs the benchmark."""
    machine = inspect_machine(backend)
    spec = ModelSpec(
        model, backend=machine.backend, device=machine.device, dtype=machine.choose_dtype(model), **options
    )
    chosen = [WAYS[name] for name in ways if name not in ONLY_NVFUSER or spec.backend == "nvfuser"]
    profile = profile and spec.backend == "nvfuser"
    turns = [_turn(spec, way, profile and turn == repeat - 1) for turn in range(repeat) for way in chosen]
    result = make_result(
        machine.environment,
        asdict(spec),
        points=[point for way in chosen for point in _points(way, turns)],
        equal=len({found["digest"] for turn in turns for found in turn.found.values()}) == 1,
        profile=[turn.profile for turn in turns if turn.profile],
    )
    write_result(json_file, result)
    _print(result)
    sys.exit(0 if result["equal"] else 1)


def _turn(spec: ModelSpec, way: Way, profile: bool) -> _Turn:
    """Runs a cold process, then a warm one, and then one more like the last with nvFuser's trace."""
    with TemporaryDirectory(prefix="fusioncache-warm-") as directory:
        found, last = {}, "warm" if way.keeps else "cold"
        for kind in ("cold", "warm") if way.keeps else ("cold",):
            found[kind] = processes.call(_WORKER, asdict(spec), caches=Path(directory), environment=way.environment)
            say(f"{way.name}, {kind}: first step {found[kind]['seconds']['first_step']:.2f} s\n")
        return _Turn(way.name, found, _profile(spec, way, last, Path(directory)) if profile else None)


def _profile(spec: ModelSpec, way: Way, kind: str, caches: Path) -> dict[str, Any]:
    """Runs one more process, and returns where nvFuser's seconds go in it."""
    file = caches / "trace.json"
    environment = {**way.environment, VARIABLE: str(file)}
    processes.call(_WORKER, asdict(spec), caches=caches, environment=environment)
    return {"way": way.name, "process": kind, "seconds": sum_stages(file) if file.exists() else {}}


def _points(way: Way, turns: Sequence[_Turn]) -> list[dict[str, Any]]:
    points = []
    for kind in ("cold", "warm"):
        found = [turn.found[kind] for turn in turns if turn.way == way.name and kind in turn.found]
        if found:
            seconds = {part: median(one["seconds"][part] for one in found) for part in SECONDS}
            points.append({"way": way.name, "process": kind, "seconds": seconds, "repeats": found})
    return points


def _print(result: dict[str, Any]) -> None:
    out = console()
    options = result["environment"]["options"]
    title = f"a training step: {options['model']}, {options['layers']} layers, {options['dtype']}, {options['backend']}"
    caption = "medians, seconds; the bits of all processes are compared"
    columns = ("<kept", "<process", "first step", "compile", "load", "compiles", "loads", "later step, ms")
    out.print(make_table(title, caption, columns, map(_row, result["points"])))
    out.print("all processes computed the same bits" if result["equal"] else "error: the processes' bits differ")
    for found in result["profile"]:
        parts = ", ".join(f"{stage} {seconds:.2f} s" for stage, seconds in found["seconds"].items())
        out.print(f"nvFuser, {found['way']}, {found['process']}: {parts or 'not called'}")


def _row(point: Mapping[str, Any]) -> list[str]:
    first = point["repeats"][0]
    later = "-" if first["step_ms"] is None else f"{median(one['step_ms'] for one in point['repeats']):.2f}"
    times = [f"{point['seconds'][part]:.3f}" for part in ("first_step", "compile", "load")]
    return [point["way"], point["process"], *times, str(first["compiles"]), str(first["loads"]), later]


if __name__ == "__main__":
    main()
