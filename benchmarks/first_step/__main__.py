"""Where the seconds of a first step go: Thunder's interpreter and passes one by one, fusioncache, compiling, running.

Every point is a fresh process with empty cache directories. ``benchmarks/first_step_worker.py`` says what the phases
are. ``--tracing own`` is Thunder's own tracing, ``fast`` is that of ``FusionCache(fast_tracing=True)``.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import click
from rich.box import SIMPLE_HEAD
from rich.table import Table

from benchmarks.common import processes, report
from benchmarks.common.hardware import look
from benchmarks.common.options import Layers, Modes, NewFile
from benchmarks.scaling.spec import MODELS, Spec

SCHEMA = 1
PHASES = (
    *("interpret", "prologue", "grad", "claim", "fuse", "rematerialize", "cleanup", "codegen"),
    *("fusioncache", "compile", "rest", "total"),
)


@click.command(context_settings={"show_default": True}, help=__doc__)
@click.option("--model", type=click.Choice(MODELS), default="llama")
@click.option("--layers", type=Layers(), default=(8, 16, 32), help="As in 8,16,32.")
@click.option("--tracing", type=Modes(("own", "fast")), default=("own", "fast"), help="As in own,fast.")
@click.option("--recompute/--no-recompute", default=False, help="As NVIDIA/Fuser#2916.")
@click.option("--backend", type=click.Choice(["auto", "nvfuser", "inductor", "eager"]), default="auto")
@click.option("--repeat", type=click.IntRange(min=1), default=1, help="Processes for each point; the median counts.")
@click.option("--json", "json_file", type=NewFile(), metavar="FILE", help="Write the result as one JSON object.")
def main(
    json_file: Path | None, layers: tuple[int, ...], tracing: tuple[str, ...], repeat: int, **options: Any
) -> None:
    here = look(options["backend"])
    gpu = here["device"] == "cuda"
    common = {
        **options,
        "backend": here["backend"],
        "device": here["device"],
        "mode": "cached",
        "grad": True,
        "size": 10,
    }
    common["dtype"] = "bfloat16" if gpu and options["model"] == "llama" else "float32"
    points: list[dict[str, Any]] = []
    for count in layers:
        points += _measured(Spec(layers=count, **common), tracing, repeat)
        if json_file:
            result = {"schema": SCHEMA, "environment": here["environment"] | {"options": common}, "points": points}
            json_file.write_text(json.dumps(result, indent=1) + "\n")
    report.console().print(_table(points))


def _measured(spec: Spec, tracing: tuple[str, ...], repeat: int) -> list[dict[str, Any]]:
    """The points of one depth: the two ways of tracing take turns."""
    answers: dict[str, list[dict[str, float]]] = {kind: [] for kind in tracing}
    for _ in range(repeat):
        for kind in tracing:
            click.echo(f"{spec.layers} layers, {kind}: ", err=True, nl=False)
            answers[kind].append(processes.call("benchmarks.first_step.worker", {**asdict(spec), "tracing": kind}))
            click.echo(f"{answers[kind][-1]['total']:.2f} s", err=True)
    return [
        {
            "layers": spec.layers,
            "tracing": kind,
            "seconds": {phase: median(answer.get(phase, 0.0) for answer in answers[kind]) for phase in PHASES},
            "repeats": answers[kind],
        }
        for kind in tracing
    ]


def _table(points: list[dict[str, Any]]) -> Table:
    table = Table(title="seconds of a first step, forward and backward", box=SIMPLE_HEAD, padding=(0, 0, 0, 0))
    for name in ("layers", "tracing", *PHASES):
        table.add_column({"rematerialize": "remat", "fusioncache": "ours"}.get(name, name), justify="right")
    for point in points:
        table.add_row(str(point["layers"]), point["tracing"], *(f"{point['seconds'][phase]:.2f}" for phase in PHASES))
    return table


if __name__ == "__main__":
    main()
