"""What mixtures of experts cost, step by step, with other routing in each.

A narrow Mixtral of litgpt, 8 experts in each layer, takes training steps on random tokens: with fusioncache and with
plain Thunder, both through ``thunderfx``, with torch.compile, and as it is. One layer of experts takes steps as well,
once with one grouped product and once with a loop over the experts. Each is a fresh process with empty cache folders.
Every step is timed, with how often anything was compiled or traced in it (for torch.compile both are the graphs of
Dynamo).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import click

from benchmarks.common import processes
from benchmarks.common.environment import inspect_machine
from benchmarks.common.options import Words, backend_option, command, json_option, require_litgpt
from benchmarks.common.report import console, make_table
from benchmarks.common.results import Point, make_result, say, write_result
from benchmarks.experts.spec import PEERS, ExpertsSpec

_FIRST = 10
"""How many steps are the first ones: what they compile and trace is not counted."""


@command(__doc__)
@click.option("--layers", type=click.IntRange(min=1), default=2)
@click.option("--experts", type=click.IntRange(min=2), default=8)
@click.option("--batch", type=click.IntRange(min=1), default=2, help="Rows of tokens.")
@click.option("--length", type=click.IntRange(min=1), default=64, help="Tokens in a row.")
@click.option("--steps", type=click.IntRange(min=_FIRST + 2), default=500)
@click.option("--seconds", type=click.FloatRange(min=1.0), default=30.0, help="Of a model; a layer gets a third.")
@click.option("--peers", type=Words(tuple(PEERS)), default=tuple(PEERS), help="As in fusioncache,eager.")
@click.option("--limit", type=click.FloatRange(min=1.0), help="Seconds after which a process is ended.")
@backend_option()
@json_option
def main(
    json_file: Path | None, peers: Sequence[str], seconds: float, limit: float | None, backend: str, **options: Any
) -> None:
    """Runs the benchmark."""
    if any(PEERS[peer].what == "model" for peer in peers):
        require_litgpt("Mixtral")
    machine = inspect_machine(backend)
    common = {"backend": machine.backend, "device": machine.device, "dtype": machine.choose_dtype("llama"), **options}
    points: list[Point] = []
    for peer in peers:
        share = seconds if PEERS[peer].what == "model" else seconds / 3
        points.append(_run(ExpertsSpec(peer=peer, seconds=share, **common), limit))
        write_result(json_file, make_result(machine.environment, {**common, "seconds": seconds}, points=points))
    _print(points)
    sys.exit(1 if any("error_message" in point for point in points) else 0)


def _run(spec: ExpertsSpec, limit: float | None) -> Point:
    """Returns what one peer's process said; what went wrong if it said nothing."""
    try:
        found = processes.call("benchmarks.experts.worker", asdict(spec), limit=limit)
    except processes.ProcessFailed as failure:
        say(f"{spec.peer}: {failure.message}\n")
        return {"peer": spec.peer, "error_message": failure.message, "log": failure.log}
    point = {"peer": spec.peer, **_summarize(found["steps"]), **found}
    say(f"{spec.peer}: {len(found['steps'])} steps in {sum(step['seconds'] for step in found['steps']):.1f} s\n")
    return point


def _summarize(steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns what the first step took, and of those behind the first ones the median, the slowest, and the counts."""
    later = steps[_FIRST:] or steps[-1:]
    seconds = [step["seconds"] for step in later]
    counts = {f"later_{name}": sum(step[name] for step in later) for name in ("compiles", "traces")}
    return {"first": steps[0]["seconds"], "median": median(seconds), "slowest": max(seconds), **counts}


def _print(points: Sequence[Point]) -> None:
    columns = ("<peer", "steps", "first, s", "median, ms", "slowest, ms", "times", "compiles", "traces", "error")
    caption = f"median, slowest, compiles and traces of the steps behind the first {_FIRST}"
    rows = [_row(point) for point in points if "error_message" not in point]
    console().print(make_table("steps of experts, with other routing in each", caption, columns, rows))
    for point in points:
        if "error_message" in point:
            click.echo(f"{point['peer']}: {point['error_message']}")


def _row(point: Mapping[str, Any]) -> list[str]:
    return [
        point["peer"],
        str(len(point["steps"])),
        f"{point['first']:.2f}",
        f"{1e3 * point['median']:.2f}",
        f"{1e3 * point['slowest']:.1f}",
        f"{point['slowest'] / point['median']:.1f}",
        str(point["later_compiles"]),
        str(point["later_traces"]),
        f"{point['error']:.1e}",
    ]


if __name__ == "__main__":
    main()
