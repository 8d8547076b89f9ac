"""Host time of a later training step, part by part, of a narrow Llama.

The model takes steps with Thunder alone, with fusioncache, with that and Thunder's own prologue, with that and its
own calls, and with torch.compile, on a GPU also with CUDA graphs: ours, Thunder's and torch.compile's. Each has a fresh
process with empty cache folders. Before each part the device has nothing to do, so that the host is what is waited for:
on a GPU forward and backward are the time until everything is launched; on a CPU what is computed is in them as well.
The prologue is the part of the forward pass that checks the arguments and the model. Figures are medians of all steps.
A step of many, one right after the other, takes the time that is called wall, and GiB is what torch reserves of the
GPU's memory for these. Counted in one step are Python's functions, torch's that are written in C++, the operations that
come to torch's dispatcher, and the statements of Thunder's final traces.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from benchmarks.common import processes
from benchmarks.common.environment import inspect_machine
from benchmarks.common.options import Numbers, Words, backend_option, command, json_option, require_litgpt
from benchmarks.common.report import console, make_table
from benchmarks.common.results import Point, make_result, say, write_result
from benchmarks.common.spec import ModelSpec, count_layers
from benchmarks.step_overhead.spec import GPU_WAYS, WAYS

_PARTS = ("prologue", "forward", "backward", "step", "wall")
_COUNTS = ("python", "torch", "operations", "symbols")


@command(__doc__)
@click.option("--layers", type=Numbers(), default="8,32")
@click.option("--ways", type=Words(tuple(WAYS)), default=tuple(WAYS), help="As in thunder,fusioncache.")
@click.option("--steps", type=click.IntRange(min=1), default=200, help="Steps that count.")
@backend_option()
@json_option
def main(layers: Sequence[int], ways: Sequence[str], steps: int, backend: str, json_file: Path | None) -> None:
    """Runs the benchmark."""
    require_litgpt("Llama")
    machine = inspect_machine(backend)
    ways = [way for way in ways if machine.device == "cuda" or way not in GPU_WAYS]
    options = {"layers": list(layers), "ways": list(ways), "steps": steps, "backend": machine.backend}
    points: list[Point] = []
    for count in layers:
        dtype = machine.choose_dtype("llama")
        spec = ModelSpec("llama", count, machine.backend, machine.device, dtype, steps=steps)
        for way in ways:
            points.append(_run(way, spec))
            write_result(json_file, make_result(machine.environment, options, points=points))
    _print(points)
    sys.exit(1 if any("error" in point for point in points) else 0)


def _run(way: str, spec: ModelSpec) -> Point:
    """Returns what one way's process said; what went wrong if it said nothing."""
    point: Point = {"layers": spec.layers, "way": way}
    try:
        point |= processes.call("benchmarks.step_overhead.worker", {"way": way, "spec": asdict(spec)})
    except processes.ProcessFailed as failure:
        say(f"{count_layers(spec.layers)}, {way}: {failure.message}\n")
        return {**point, "error": failure.message, "log": failure.log}
    say(f"{count_layers(spec.layers)}, {way}: {point['milliseconds']['step']:.3f} ms\n")
    return point


def _print(points: Sequence[Point]) -> None:
    columns = ("layers", "<way", *(f"{part}, ms" for part in _PARTS), "GiB", *_COUNTS)
    rows = [
        [
            str(point["layers"]),
            point["way"],
            *(_write(point, part) for part in _PARTS),
            _write_memory(point),
            *_write_counts(point),
        ]
        for point in points
        if "error" not in point
    ]
    console().print(make_table("host time of a later step", "medians; a prologue is part of forward", columns, rows))
    for point in points:
        if "error" in point:
            click.echo(f"{count_layers(point['layers'])}, {point['way']}: {point['error']}")


def _write_counts(point: Point) -> list[str]:
    return [str(point["counts"].get(name, "")) for name in _COUNTS]


def _write_memory(point: Point) -> str:
    found = point["reserved_bytes"]
    return "" if found is None else f"{found / 2**30:.2f}"


def _write(point: Point, part: str) -> str:
    found = point["milliseconds"].get(part)
    return "" if found is None else f"{found:.3f}"


if __name__ == "__main__":
    main()
