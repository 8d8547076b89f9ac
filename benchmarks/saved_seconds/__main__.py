"""What ``stats()`` says was saved, against the real difference between Thunder alone and fusioncache.

All processes are fresh ones, with the same executors and, but for what a second process finds, empty caches. The real
difference is that of the first training step. As ``stats()`` does, it leaves out the one-time start of the compiler,
which is measured by itself, and faster tracing: ``alone`` is Thunder with the shortcuts of
``fusioncache.tracing.install()``. The column ``tracing`` says what these save beside what is reported.

Reported and real seconds agree if they differ by no more than 20%, or half a second. Medians count. Seconds are those
of the CPU, of a process and of those that it starts, or those of the wall. Other processes of a host change those of
the wall by more than a tenth from one process to the next.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import click

from benchmarks.common import processes
from benchmarks.common.environment import inspect_machine
from benchmarks.common.options import Words, backend_option, command, json_option, repeat_option
from benchmarks.common.report import console, make_table
from benchmarks.common.results import Outcome, Point, make_result, say, write_result
from benchmarks.saved_seconds.spec import (
    COMPARISONS,
    MODELS,
    OURS,
    SHORTCUTS,
    STARTS,
    THUNDER,
    Comparison,
    ProcessSpec,
    agrees,
)

_WORKER = "benchmarks.saved_seconds.worker"
_INDUCTOR = "TORCHINDUCTOR_CACHE_DIR"


@command(__doc__)
@click.option("--models", type=Words(MODELS), default=MODELS, help="As in llama-2,pythia.")
@click.option("--layers", type=click.IntRange(min=1), default=2, help="Of llama-2 and pythia.")
@backend_option("nvfuser", "inductor")
@repeat_option("How often all processes of a model run; the median counts.")
@click.option("--tracing/--no-tracing", default=True, help="Measure what the shortcuts in tracing save, too.")
@click.option("--clock", type=click.Choice(["auto", "cpu", "wall"]), default="auto", help="auto is wall on a GPU.")
@json_option
def main(
    json_file: Path | None,
    models: Sequence[str],
    layers: int,
    backend: str,
    repeat: int,
    tracing: bool,
    clock: str,
) -> None:
    """Runs the benchmark."""
    machine = inspect_machine(backend)
    if clock == "auto":
        clock = "cpu" if machine.device == "cpu" else "wall"
    options = {"layers": layers, "backend": machine.backend, "clock": clock, "repeat": repeat}
    outcome = Outcome()
    about: dict[str, Any] = {"layers": layers, "backend": machine.backend, "device": machine.device, "clock": clock}
    with TemporaryDirectory(prefix="fusioncache-saved-", ignore_cleanup_errors=True) as directory:
        series = _Series(Path(directory), about, tracing)
        start = series.start()
        for model in models:
            found: dict[str, list[Mapping[str, Any]]] = {}
            for _ in range(repeat):
                for role, said in series.run(model).items():
                    found.setdefault(role, []).append(said)
            outcome.points += [_compare(model, each, found) for each in COMPARISONS if each.alone in found]
            result = make_result(machine.environment, options, start_seconds=start, points=outcome.points)
            write_result(json_file, result)
    _print(outcome.points, start)
    sys.exit(1 if outcome.failed or not all(point["agrees"] for point in outcome.points) else 0)


@dataclass(slots=True)
class _Series:
    """Runs the processes of a model.

    Attributes:
        directory: where their caches are.
        about: fields of their specs.
        tracing: whether a process traces without our shortcuts.
        processor: what the first process found that the processor can do.
        number: how often the processes of a model ran.
    """

    directory: Path
    about: Mapping[str, Any]
    tracing: bool
    processor: str = ""
    number: int = field(default=0)

    def start(self) -> float:
        """Has a process only start the compiler; returns its seconds. All others know what the processor can do."""
        said = self._call(STARTS, MODELS[0], "seed", self.directory / "inductor-seed")
        self.processor = said["processor"]
        return float(said["start"])

    def run(self, model: str) -> dict[str, Mapping[str, Any]]:
        """Runs each process once; returns what it said, by its role."""
        self.number += 1

        def call(way: str, caches: str, inductor: str) -> Mapping[str, Any]:
            folder = self.directory / f"inductor-{self.number}-{inductor}"
            return self._call(way, model, f"{self.number}-{caches}", folder)

        found = {"traced alone": call(THUNDER, "thunder", "thunder")} if self.tracing else {}
        found |= {
            "alone": call(SHORTCUTS, "alone", "alone"),
            "first": call(OURS, "ours", "first"),
            "second": call(OURS, "ours", "second"),
        }
        if self.about["backend"] == "inductor":
            found["alone again"] = call(SHORTCUTS, "alone", "alone")
            found["second beside"] = call(OURS, "ours", "alone")
        return found

    def _call(self, way: str, model: str, caches: str, inductor: Path) -> Mapping[str, Any]:
        spec = ProcessSpec(way, model, **self.about, processor=self.processor)
        folder = self.directory / caches
        folder.mkdir(exist_ok=True)
        about: dict[str, Any] = {"caches": folder, "environment": {_INDUCTOR: str(inductor), **self._headers()}}
        said: Mapping[str, Any] = processes.call(_WORKER, asdict(spec), **about)
        say(f"{model}, {way}: start {said['start']:.2f} s, step {said['step']:.2f} s\n")
        return said

    def _headers(self) -> dict[str, str]:
        """Returns the variable that has all processes find the headers that the first one compiled at its start."""
        if self.about["backend"] != "inductor":
            return {}
        folder = self.directory / "headers"
        folder.mkdir(exist_ok=True)
        return {"TMPDIR": str(folder)}


def _compare(model: str, comparison: Comparison, found: Mapping[str, Sequence[Mapping[str, Any]]]) -> Point:
    """Returns one point: medians of what was reported and of the real difference."""

    def median_of(role: str, read: Callable[[Mapping[str, Any]], float]) -> float:
        return median(map(read, found[role]))

    alone, ours = (median_of(role, lambda said: said["step"]) for role in (comparison.alone, comparison.ours))
    reported = median_of(comparison.ours, lambda said: said["reported"]["saved_seconds"])
    traced_alone = median_of("traced alone", lambda said: said["step"]) if "traced alone" in found else None
    return {
        "model": model,
        "comparison": comparison.name,
        "seconds": {"alone": alone, "fusioncache": ours, "real": alone - ours, "reported": reported},
        "start": {role: median_of(role, lambda said: said["start"]) for role in (comparison.alone, comparison.ours)},
        "tracing": None if traced_alone is None else traced_alone - median_of("alone", lambda said: said["step"]),
        "agrees": agrees(reported, alone - ours),
        "repeats": {role: list(found[role]) for role in (comparison.alone, comparison.ours)},
    }


def _print(points: Sequence[Point], start: float) -> None:
    columns = ("<model", "<process", "alone", "fusioncache", "real", "reported", "<agree", "tracing")
    rows = [
        [
            point["model"],
            point["comparison"],
            *(f"{point['seconds'][name]:.2f}" for name in ("alone", "fusioncache", "real", "reported")),
            "yes" if point["agrees"] else "no",
            "" if point["tracing"] is None else f"{point['tracing']:.2f}",
        ]
        for point in points
    ]
    console().print(make_table("seconds of the first step", None, columns, rows))
    click.echo(f"one-time start of the compiler with empty caches: {start:.1f} s, part of no figure above")


if __name__ == "__main__":
    main()
