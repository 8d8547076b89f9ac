"""What a training step costs that several devices share: time, exposed communication, memory, compiles.

All ranks take the same steps of a Llama (forward, cross entropy, backward), each with tokens of its own. ``exposed``
is the time in which a kernel of NCCL's ran and no other one, by torch's profiler; on a CPU there is none. In the end
each peer trains for three steps: fusioncache's losses and gradients must have the bits of Thunder's own order of
collectives, which is the peer whose name ends in ``-thunder-order``. One whose name ends in ``-cudnn`` has attention
by cuDNN, as torch's peers have it on an H100. ``thunder-zero3``, ``thunder-zero2`` and ``thunder-ddp`` are Thunder
without fusioncache. ``hybrid`` takes an even number of ranks, at least four: half of them share each copy of the model.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from benchmarks.common.environment import inspect_machine
from benchmarks.common.options import (
    Folder,
    Numbers,
    Variable,
    Words,
    backend_option,
    command,
    json_option,
    require_litgpt,
)
from benchmarks.common.results import Point, make_result, write_result
from benchmarks.distributed.job import run_job
from benchmarks.distributed.report import compare_bits, print_points
from benchmarks.distributed.spec import MODEL, PEERS, WIDTHS, PointSpec

_TWO_RANKS = tuple(name for name, peer in PEERS.items() if peer.sharing != "hybrid")
"""The peers that a job of two ranks can run."""


@command(__doc__)
@click.option("--ranks", type=click.IntRange(min=2), default=2)
@click.option("--peers", type=Words(tuple(PEERS)), default=_TWO_RANKS, help="As in fusioncache-zero3,fsdp2-zero3.")
@click.option("--widths", type=Words(WIDTHS), default="narrow")
@click.option("--layers", type=Numbers(), default="8")
@click.option("--tokens", type=Numbers(), default="512,2048", help="Of each rank.")
@click.option("--steps", type=click.IntRange(min=1), default=20, help="Timed steps.")
@click.option("--warmup", type=click.IntRange(min=0), default=5, help="Steps before those.")
@click.option("--further", type=click.IntRange(min=0), default=0, help="Shorter lengths, of each the first step.")
@click.option(
    "--jobs", type=click.IntRange(min=1), default=1, help="Of each peer, one after another with the same caches."
)
@click.option("--in-flight-bytes", type=click.IntRange(min=0), help="Of fusioncache's peers.")
@click.option("--bucket-bytes", type=click.IntRange(min=0), help="Of fusioncache's peers.")
@click.option(
    "--share-caches/--no-share-caches",
    default=False,
    help="Whether peers of one family find what others compiled: quicker, but first steps then say little.",
)
@click.option(
    "--env",
    "variables",
    type=Variable(),
    multiple=True,
    help="NAME=VALUE of the ranks' environment, such as NCCL_P2P_DISABLE=1. NCCL's that are set are noted, too.",
)
@click.option("--caches", type=Folder(), help="A folder for what is compiled, which stays.")
@click.option("--limit", type=click.FloatRange(min=1.0), default=3600.0, help="Seconds for everything.")
@backend_option()
@json_option
def main(
    json_file: Path | None,
    ranks: int,
    peers: Sequence[str],
    widths: Sequence[str],
    layers: Sequence[int],
    tokens: Sequence[int],
    variables: Sequence[tuple[str, str]],
    jobs: int,
    caches: Path | None,
    limit: float,
    backend: str,
    **options: Any,
) -> None:
    """Runs the benchmark."""
    require_litgpt(MODEL)
    if ranks < 4 and any(PEERS[peer].sharing == "hybrid" for peer in peers):
        raise click.UsageError(f"hybrid sharing takes at least 4 ranks, not {ranks}: leave its peers out of --peers")
    deadline = time.monotonic() + limit
    machine = inspect_machine(backend)
    common = {"backend": machine.backend, "device": machine.device, "dtype": machine.choose_dtype(MODEL), **options}
    common["variables"] = {**choose_variables(os.environ), **dict(variables)}
    points: list[Point] = []
    # Peers in one process share what it holds in memory, and so a later job would miss it in its folder.
    groups = [[peer] for peer in peers] if jobs > 1 else _group_families(peers)
    with TemporaryDirectory(prefix="fusioncache-distributed-", ignore_cleanup_errors=True) as own:
        kept = Path(own) if caches is None and jobs > 1 else caches
        for width, group, number in product(widths, groups, range(1, jobs + 1)):
            specs = [
                PointSpec(peer=peer, width=width, layers=depth, tokens=count, job=number, **common)
                for depth, count, peer in product(layers, tokens, group)
            ]
            for point in run_job(specs, ranks, deadline, kept):
                points.append(point)
                _write(json_file, machine.environment, {**common, "ranks": ranks, "jobs": jobs}, points)
    print_points(points)
    failed = any("error" in point for point in points)
    sys.exit(1 if failed or not all(one["equal"] for one in compare_bits(points)) else 0)


def _group_families(peers: Sequence[str]) -> list[list[str]]:
    """Returns the peers of each family, which one job measures."""
    families = dict.fromkeys(PEERS[peer].family for peer in peers)
    return [[peer for peer in peers if PEERS[peer].family == family] for family in families]


def choose_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that say how ranks reach each other: NCCL's and those of torch's use of it."""
    prefixes = ("NCCL_", "TORCH_NCCL_")
    return {name: value for name, value in environment.items() if name.startswith(prefixes)}


def _write(file: Path | None, environment: dict[str, Any], options: dict[str, Any], points: Iterable[Point]) -> None:
    found = list(points)
    write_result(file, make_result(environment, options, points=found, bits=compare_bits(found)))


if __name__ == "__main__":
    main()
