"""Host time of a later step, part by part, of a narrow Llama, or of one of real width.

The model takes steps with Thunder alone, with fusioncache, with that and Thunder's own prologue, with that and its
own calls, with torch.compile and with nothing compiled, on a GPU also with CUDA graphs: ours, Thunder's and
torch.compile's. Each has a fresh process with empty cache folders; ``--at-once`` of these get ready beside each other,
and then measure one after the other, with nothing beside them. Before each part the device has nothing to do, so that
the host is what is waited for: on a GPU forward and backward are the time until everything is launched; on a CPU what
is computed is in them as well.
The prologue is the part of the forward pass that checks the arguments and the model. Figures are medians of all steps,
and of a way's ``--processes`` of their medians: on some hosts a process is slower than the next one at the same work.
There ``--together`` compares ways in one process, in which they take their steps in turn.
A step of many, one right after the other, takes the time that is called wall. GiB are those of the GPU's memory that
are allocated at most for these. What a GPU does in a step is summed by who made the kernels; all of the kinds are in
the JSON. Counted in one step are Python's functions, torch's that are written in C++, the operations that come to
torch's dispatcher, and the statements of Thunder's final traces.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import click

from benchmarks.common.environment import inspect_machine
from benchmarks.common.options import Lengths, Numbers, Words, backend_option, command, json_option, require_litgpt
from benchmarks.common.processes import ProcessFailed
from benchmarks.common.report import console, make_table
from benchmarks.common.results import Point, make_result, say, write_result
from benchmarks.common.spec import ModelSpec
from benchmarks.common.turns import call_in_turns
from benchmarks.step_overhead.spec import ALONE, GPU_WAYS, MODES, WAYS, WIDTHS, StepSpec

_WORKER = "benchmarks.step_overhead.worker"
_PARTS = ("prologue", "forward", "backward", "step", "tenth", "wall")
_COUNTS = ("python", "torch", "operations", "symbols")


@command(__doc__)
@click.option("--layers", type=Numbers(), default="8,32")
@click.option("--ways", type=Words(tuple(WAYS)), default=tuple(WAYS), help="As in thunder,fusioncache.")
@click.option(
    "--width", type=click.Choice(WIDTHS), default="narrow", help="Of the layers: narrow, or Llama-2-7b's own."
)
@click.option("--tokens", type=Lengths(), help="In one row, as in 128,2048. By default 64 in each of two rows.")
@click.option("--mode", type=click.Choice(MODES), default="training", help="Inference is forward without gradients.")
@click.option("--steps", type=click.IntRange(min=1), default=200, help="Steps that count.")
@click.option("--processes", type=click.IntRange(min=1), default=1, help="For each way; the medians of theirs count.")
@click.option("--at-once", type=click.IntRange(min=1), default=1, help="Processes that get ready beside each other.")
@click.option("--limit", type=click.FloatRange(min=1.0), help="Seconds that each may take, waiting among them.")
@click.option("--together", is_flag=True, help="All ways in one process, a step of each in turn.")
@backend_option()
@json_option
def main(
    layers: Sequence[int],
    ways: Sequence[str],
    width: str,
    tokens: Sequence[int] | None,
    mode: str,
    steps: int,
    processes: int,
    at_once: int,
    limit: float | None,
    together: bool,
    backend: str,
    json_file: Path | None,
) -> None:
    """Runs the benchmark."""
    require_litgpt("Llama")
    machine = inspect_machine(backend)
    ways = [way for way in ways if machine.device == "cuda" or way not in GPU_WAYS]
    lengths: list[int | None] = list(tokens or ()) or [128 if width == "real" else None]
    options = {"layers": list(layers), "ways": list(ways), "width": width, "tokens": lengths, "mode": mode}
    options |= {"steps": steps, "processes": processes, "at_once": at_once, "backend": machine.backend}
    options["together"] = together
    if together and (alone := sorted(ALONE.intersection(ways))):
        raise click.UsageError(f"--together is not for ways that need a process of their own: {', '.join(alone)}")
    dtype, grad = machine.choose_dtype("llama"), mode == "training"
    model = ModelSpec("llama", 0, machine.backend, machine.device, dtype, grad=grad, steps=steps)
    sizes = [(replace(model, layers=count), width, length) for count, length in product(layers, lengths)]
    groups = [[StepSpec(way, *size) for way in ways] for size in sizes]
    if not together:
        groups = [[spec] for group in groups for spec in group]
    points: list[Point] = []
    found: dict[StepSpec, list[Any]] = {}
    rounds = [group for _ in range(processes) for group in groups]  # those of one way do not follow each other
    arguments = [{"specs": [asdict(spec) for spec in group]} for group in rounds]
    for group, answer in zip(rounds, call_in_turns(_WORKER, arguments, at_once, limit), strict=True):
        said = [answer] * len(group) if isinstance(answer, ProcessFailed) else answer
        for spec, each in zip(group, said, strict=True):
            _tell(spec, each)
            found.setdefault(spec, []).append(each)
        points = [_make_point(*each) for each in found.items()]
        write_result(json_file, make_result(machine.environment, options, points=points))
    _print(points)
    sys.exit(1 if any("error" in point for point in points) else 0)


def _tell(spec: StepSpec, answer: Any) -> None:
    told = answer.message if isinstance(answer, ProcessFailed) else f"{answer['milliseconds']['step']:.3f} ms"
    say(f"{spec}: {told}\n")


def _make_point(spec: StepSpec, answers: Sequence[Any]) -> Point:
    """Returns what one way's processes said, with medians of their times; what went wrong if none said anything.

    Counts and kernels are those of the first one, as all of them do the same.
    """
    point: Point = {"layers": spec.model.layers, "width": spec.width, "tokens": spec.tokens, "mode": spec.mode}
    point["way"] = spec.way
    said = [answer for answer in answers if not isinstance(answer, ProcessFailed)]
    if not said:
        return {**point, "error": answers[0].message, "log": answers[0].log}
    times = [answer["milliseconds"] for answer in said]
    milliseconds = {part: median(each[part] for each in times) for part in times[0]}
    return {**point, **said[0], "milliseconds": milliseconds, "processes": times}


def _print(points: Sequence[Point]) -> None:
    parts = (f"{part}, ms" for part in _PARTS)
    columns = ("layers", "tokens", "<way", *parts, "GPU, ms", "nvFuser, ms", "GiB", *_COUNTS)
    rows = [_write_row(point) for point in points if "error" not in point]
    console().print(make_table("host time of a later step", "medians; a prologue is part of forward", columns, rows))
    for point in points:
        if "error" in point:
            click.echo(f"{point['layers']}, {point['way']}: {point['error']}")


def _write_row(point: Point) -> list[str]:
    kernels, peak = point["kernels"], point["peak_bytes"]
    busy = {kind: found["milliseconds"] for kind, found in (kernels or {}).items()}
    return [
        str(point["layers"]),
        str(point["tokens"] or "2 x 64"),
        point["way"],
        *(_write(point, part) for part in _PARTS),
        f"{sum(busy.values()):.3f}" if busy else "",
        f"{busy['nvFuser']:.3f}" if "nvFuser" in busy else "",
        "" if peak is None else f"{peak / 2**30:.2f}",
        *(str(point["counts"].get(name, "")) for name in _COUNTS),
    ]


def _write(point: Point, part: str) -> str:
    found = point["milliseconds"].get(part)
    return "" if found is None else f"{found:.3f}"


if __name__ == "__main__":
    main()
