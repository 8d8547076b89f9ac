"""What the ranks of a job compile between them, and how long their first step takes.

Each count of ranks is a job of its own under ``torchrun`` with empty cache directories; all ranks run the same training
step on a device of their own. ``together``: the ranks share a directory, as on one machine; ``separate``: each has one
of its own, as on machines without a common file system, so that only the job itself connects them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import click

from benchmarks.common.job import run_job
from benchmarks.common.models import MODELS, ModelSpec, make_model
from benchmarks.common.options import (
    Numbers,
    Words,
    backend_option,
    command,
    json_option,
    layers_option,
    repeat_option,
)
from benchmarks.common.processes import ProcessFailed, say
from benchmarks.common.runner import Point, begin, describe_failure, pick
from benchmarks.common.steps import synchronize


def measure(argument: Mapping[str, Any], rank: int) -> Iterator[dict[str, Any]]:
    """Yields the seconds of this rank's first step, which all ranks start at the same moment, counts and a digest."""
    if argument["separate"]:
        os.environ["FUSIONCACHE_DIR"] = os.path.join(os.environ["FUSIONCACHE_DIR"], f"rank{rank}")
    import torch.distributed as distributed

    from benchmarks.common.tensors import digest_all, name_results
    from benchmarks.common.thunder_jit import jit, make_transform

    spec = ModelSpec.read(argument["spec"])
    model, example = make_model(spec)
    transform = make_transform(spec.backend)
    compiled = jit(model, spec.backend, transform)
    distributed.barrier()
    synchronize(spec.device)
    start = time.perf_counter()
    output = compiled(example)
    output.float().square().mean().backward()
    synchronize(spec.device)
    seconds, stats = time.perf_counter() - start, transform.stats()
    counts = {
        name: getattr(stats, name) for name in ("regions", "compiles", "loads", "compile_seconds", "load_seconds")
    }
    yield {"seconds": seconds, **counts, "digest": digest_all(name_results(model, output))}


@command(__doc__)
@click.option("--ranks", type=Numbers(), default=(1, 2), help="As in 1,2,4.")
@click.option("--directories", type=Words(("together", "separate")), default=("together", "separate"))
@click.option("--model", type=click.Choice(MODELS), default="llama")
@layers_option(2)
@backend_option()
@repeat_option("Jobs for each point; the median counts.")
@json_option
def main(
    json_file: Path | None,
    ranks: tuple[int, ...],
    directories: tuple[str, ...],
    repeat: int,
    model: str,
    layers: int,
    backend: str,
) -> None:
    """Runs the benchmark."""
    run = begin(json_file, {"model": model, "layers": layers}, backend)
    machine = run.machine
    spec = ModelSpec(model, layers, machine.backend, machine.device, machine.choose_dtype(model))
    for count, kind in product(ranks, directories):
        if count == 1 and kind != directories[0]:
            continue
        argument = {"spec": asdict(spec), "separate": kind == "separate", "device": spec.device}
        about = {"ranks": count, "directories": kind}
        try:
            jobs = [found for _ in range(repeat) for found in run_job("benchmarks.ranks:measure", argument, count)]
            run.keep({**about, **summarize(jobs)})
        except ProcessFailed as failure:
            run.keep(describe_failure(about, failure))
        say(f"{run.points[-1].get('first_step')} s\n")
    digests = {rank["digest"] for point in run.points for job in point.get("jobs", ()) for rank in job}
    run.more["equal"] = len(digests) <= 1
    for point in run.points:
        point["correct"] = run.more["equal"]
    columns = {name: pick(name) for name in ("ranks", "directories", "first_step", "compiles", "loads")}
    run.finish("first step of a job", columns, "seconds of the slowest rank; counts of all ranks together")


def summarize(jobs: list[list[Point]]) -> Point:
    """Returns medians of what happened in all ranks: the slowest rank's first step, the sum of their counts."""
    return {
        "first_step": median(max(rank["seconds"] for rank in job) for job in jobs),
        "compiles": median(sum(rank["compiles"] for rank in job) for job in jobs),
        "loads": median(sum(rank["loads"] for rank in job) for job in jobs),
        "jobs": jobs,
    }


if __name__ == "__main__":
    main()
