"""Where the seconds of a first step go: Thunder's interpreter and passes one by one, fusioncache, compiling, running.

Every point is a fresh process with empty cache directories. ``benchmarks/first_step/worker.py`` says what the phases
are. ``--tracing own`` is Thunder's own tracing, ``fast`` is that of ``FusionCache(fast_tracing=True)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median

import click

from benchmarks.common import processes
from benchmarks.common.environment import inspect_machine
from benchmarks.common.options import Numbers, Words, backend_option, command, json_option, repeat_option
from benchmarks.common.report import console, make_table
from benchmarks.common.results import Point, make_result, say, write_result
from benchmarks.common.spec import MODELS, ModelSpec

PHASES = (
    *("interpret", "prologue", "grad", "claim", "fuse", "rematerialize", "cleanup", "codegen"),
    *("fusioncache", "compile", "rest", "total"),
)


@command(__doc__)
@click.option("--model", type=click.Choice(MODELS), default="llama")
@click.option("--layers", type=Numbers(), default=(8, 16, 32), help="As in 8,16,32.")
@click.option("--tracing", type=Words(("own", "fast")), default=("own", "fast"), help="As in own,fast.")
@click.option("--recompute/--no-recompute", default=False, help="As NVIDIA/Fuser#2916.")
@backend_option()
@repeat_option()
@json_option
def main(
    json_file: Path | None,
    model: str,
    layers: Sequence[int],
    tracing: Sequence[str],
    recompute: bool,
    backend: str,
    repeat: int,
) -> None:
    """Runs the benchmark."""
    machine = inspect_machine(backend)
    points: list[Point] = []
    for count in layers:
        spec = ModelSpec(model, count, machine.backend, machine.device, machine.choose_dtype(model), recompute)
        points += _measure(spec, tracing, repeat)
        options = {name: value for name, value in asdict(spec).items() if name != "layers"}
        write_result(json_file, make_result(machine.environment, options, points=points))
    names = {"rematerialize": "remat", "fusioncache": "ours"}
    columns = ("layers", "tracing", *(names.get(phase, phase) for phase in PHASES))
    rows = (
        [str(point["layers"]), point["tracing"], *(f"{point['seconds'][phase]:.2f}" for phase in PHASES)]
        for point in points
    )
    console().print(make_table("seconds of a first step, forward and backward", None, columns, rows))


def _measure(spec: ModelSpec, tracing: Sequence[str], repeat: int) -> list[Point]:
    """Returns the points of one depth. The ways of tracing take turns."""
    answers: dict[str, list[dict[str, float]]] = {kind: [] for kind in tracing}
    for _ in range(repeat):
        for kind in tracing:
            say(f"{spec.layers} layers, {kind}: ")
            answers[kind].append(processes.call("benchmarks.first_step.worker", {**asdict(spec), "tracing": kind}))
            say(f"{answers[kind][-1]['total']:.2f} s\n")
    return [
        {
            "layers": spec.layers,
            "tracing": kind,
            "seconds": {phase: median(answer.get(phase, 0.0) for answer in answers[kind]) for phase in PHASES},
            "repeats": answers[kind],
        }
        for kind in tracing
    ]


if __name__ == "__main__":
    main()
