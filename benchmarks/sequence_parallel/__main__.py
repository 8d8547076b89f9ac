"""What a training step costs of a model whose layers and sequences ranks share, at one length after the other.

All ranks take the same steps of a model like Llama: forward, cross entropy, backward. ``plain`` is fusioncache's
tensor_parallel(sequence=True), and ``torch`` is parallelize_module with torch.compile and its pass that joins exchanges
with products. Losses of both have to be close.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from benchmarks.common import processes
from benchmarks.common.environment import inspect_machine
from benchmarks.common.options import Lengths, Variable, Words, backend_option, command, json_option
from benchmarks.common.report import console, make_table
from benchmarks.common.results import Point, make_result, say, write_result
from benchmarks.sequence_parallel.spec import PEERS, WIDTHS, JobSpec

_TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone")
_LOG = 3000
"""How many characters of a failed job's log are kept."""
_CLOSE = 0.02
"""By which part losses of two peers may differ: in bfloat16 each rounds in an order of its own."""
_VARIABLES = {"TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}
"""Of the environment, unless it is set otherwise: none of this needs NVLink's multicast."""


@command(__doc__)
@click.option("--ranks", type=click.IntRange(min=2), default=2)
@click.option("--peers", type=Words(tuple(PEERS)), default=tuple(PEERS), help="As in plain,torch.")
@click.option("--width", type=click.Choice(tuple(WIDTHS)), default="narrow")
@click.option("--layers", type=click.IntRange(min=1), default=2)
@click.option("--batch", type=click.IntRange(min=1), default=1)
@click.option("--lengths", type=Lengths(), default="2048,1536,1024,2048", help="In the order in which they come.")
@click.option("--steps", type=click.IntRange(min=1), default=20, help="Timed steps at each length.")
@click.option("--warmup", type=click.IntRange(min=0), default=5, help="Steps before those.")
@click.option("--env", "variables", type=Variable(), multiple=True, help="NAME=VALUE of the ranks' environment.")
@click.option("--limit", type=click.FloatRange(min=1.0), default=3600.0, help="Seconds for everything.")
@backend_option()
@json_option
def main(
    json_file: Path | None,
    ranks: int,
    peers: Sequence[str],
    variables: Sequence[tuple[str, str]],
    limit: float,
    backend: str,
    **options: Any,
) -> None:
    """Runs the benchmark."""
    deadline = time.monotonic() + limit
    machine = inspect_machine(backend)
    dtype = "bfloat16" if machine.device == "cuda" else "float32"
    common = {"backend": machine.backend, "device": machine.device, "dtype": dtype, **options}
    chosen = {**{name: os.environ.get(name, value) for name, value in _VARIABLES.items()}, **dict(variables)}
    points: list[Point] = []
    for peer in peers:
        for point in run_job(JobSpec(peer=peer, **common), ranks, chosen, deadline):
            points.append(point)
            noted = {**common, "ranks": ranks, "variables": chosen}
            write_result(json_file, make_result(machine.environment, noted, points=check_losses(points)))
    print_points(check_losses(points), f"{options['width']} model of {options['layers']} layers on {ranks} ranks")
    sys.exit(1 if any("error" in point or not point["correct"] for point in check_losses(points)) else 0)


def run_job(spec: JobSpec, ranks: int, variables: Mapping[str, str], deadline: float) -> Iterator[Point]:
    """Yields what the ranks say of each length; of the first one that fails, why."""
    with TemporaryDirectory(prefix="fusioncache-sequence-", ignore_cleanup_errors=True) as directory:
        answers, log = Path(directory, "answers"), Path(directory, "log")
        answers.mkdir()
        module = ("-m", "benchmarks.sequence_parallel.worker", json.dumps(asdict(spec)), str(answers))
        environment = {**processes.environment_in(directory), "OMP_NUM_THREADS": "1", **variables}
        why = "no time was left"
        if deadline > time.monotonic():
            with log.open("wb") as output:
                job = subprocess.Popen(
                    [*_TORCHRUN, f"--nproc-per-node={ranks}", *module],
                    cwd=processes.ROOT,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                )
                try:
                    job.wait(deadline - time.monotonic())
                    why = ""
                except subprocess.TimeoutExpired:
                    job.terminate()  # torchrun ends its ranks
                    job.wait()
            why = why or log.read_text(errors="replace")[-_LOG:]
        yield from _read_points(spec, answers, ranks, why)


def _read_points(spec: JobSpec, answers: Path, ranks: int, why: str) -> Iterator[Point]:
    files = [answers / f"{rank}.jsonl" for rank in range(ranks)]
    lines = [file.read_text().splitlines() if file.exists() else [] for file in files]
    for number, length in enumerate(spec.lengths):
        point: Point = {"peer": spec.peer, "number": number, "length": length}
        if any(number >= len(each) for each in lines):
            say(f"{spec.peer}, {length} tokens: failed\n{why}\n")
            yield {**point, "error": why or "the job ended before"}
            return
        found = [json.loads(each[number]) for each in lines]
        say(f"{spec.peer}, {length} tokens: step {max(rank['step_ms'] for rank in found):.1f} ms\n")
        yield {**point, "ranks": found}


def check_losses(points: Sequence[Point]) -> list[Point]:
    """Returns points that say whether the loss of all ranks is close to that of the first peer at the same length."""
    first: dict[int, float] = {}
    checked = []
    for point in points:
        if "error" in point:
            checked.append(point)
            continue
        losses = [rank["loss"] for rank in point["ranks"]]
        expected = first.setdefault(point["number"], losses[0])
        checked.append({**point, "correct": all(abs(one - expected) <= _CLOSE * abs(expected) for one in losses)})
    return checked


def print_points(points: Sequence[Point], title: str) -> None:
    """Prints a table, then what failed."""
    columns = ("<peer", "tokens", "step, ms", "fastest", "slowest", "first, s", "GiB", "compiles", "loss")
    rows = [_row(point) for point in points if "error" not in point]
    caption = "of the rank that has most of each; compiles so far; the peers in their order, each at all lengths"
    console().print(make_table(title, caption, columns, rows, wrap=False))
    reasons = dict.fromkeys(
        f"{point['peer']}: {reason}"
        for point in points
        for rank in point.get("ranks", ())
        for reason in rank["bypasses"]
    )
    for line in reasons:
        click.echo(line)
    for point in points:
        if "error" in point:
            lines = [line for line in point["error"].splitlines() if "Error" in line] or [point["error"]]
            click.echo(f"{point['peer']}, {point['length']} tokens: {lines[0]}")
        elif not point["correct"]:
            click.echo(f"{point['peer']}, {point['length']} tokens: the loss is another one")


def _row(point: Point) -> list[str]:
    ranks = point["ranks"]
    most = {name: max(rank[name] for rank in ranks) for name in ("step_ms", "fastest_ms", "slowest_ms", "first_step")}
    peak = ranks[0]["bytes_peak"]
    return [
        point["peer"],
        str(point["length"]),
        *(f"{most[name]:.1f}" for name in ("step_ms", "fastest_ms", "slowest_ms")),
        f"{most['first_step']:.2f}",
        "none" if peak is None else f"{max(rank['bytes_peak'] for rank in ranks) / 2**30:.2f}",
        str(max(rank["compiles"] for rank in ranks)),
        f"{ranks[0]['loss']:.4f}",
    ]


if __name__ == "__main__":
    main()
