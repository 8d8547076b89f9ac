"""Measures a training step that several devices share: time, exposed communication, memory, compilations.

All ranks take the same steps of a Llama (forward, cross entropy, backward), each with tokens of its own. ``exposed``
is the time in which only NCCL's kernels ran, from torch's profiler; not measured on a CPU. At the end each peer trains
for three steps. fusioncache's losses and gradients must have the bits of the peer with Thunder's order of collectives,
whose name ends in ``-thunder-order``. Peers ending in ``-cudnn`` use cuDNN's attention, as torch's peers do on an H100.
``thunder-zero3``, ``thunder-zero2`` and ``thunder-ddp`` are Thunder without fusioncache. ``hybrid`` needs an even
number of ranks, at least four: half of them share each copy of the model. In peers ending in ``-sequence``, ranks share
the layers and the sequences of a model like Llama, on the same tokens. torch's peer uses a pass that fuses collectives
with matrix products. The losses of both must be close.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from benchmarks.common.job import run_job
from benchmarks.common.models import WIDTHS
from benchmarks.common.options import (
    Numbers,
    Variable,
    Words,
    count_option,
    limit_option,
)
from benchmarks.common.processes import ProcessFailed, print_progress
from benchmarks.common.runner import Point, Run, benchmark, describe_failure, pick
from benchmarks.distributed.spec import PEERS, PointSpec, describe_setting

_LLAMAS = tuple(name for name, peer in PEERS.items() if peer.sharing not in ("hybrid", "sequence"))
"""The peers that a job of two ranks can run, on the same model."""
_CLOSE = 0.02
"""The relative difference that losses of two peers may have: in bfloat16 each rounds in another order."""


@benchmark(__doc__, needs_litgpt=True)
@count_option("--ranks", 2, "Processes.", least=2)
@click.option("--peers", type=Words(tuple(PEERS)), default=_LLAMAS, help="As in fusioncache-zero3,fsdp2-zero3.")
@click.option("--widths", type=Words(WIDTHS), default="narrow")
@click.option("--layers", type=Numbers(), default=(8,))
@click.option("--tokens", type=Numbers(), default=(512, 2048), help="Of each rank.")
@count_option("--steps", 20, "Timed steps.")
@count_option("--warmup", 5, "Steps before those.", least=0)
@count_option("--further", 0, "Shorter lengths at which steps are taken as well.", least=0)
@count_option("--jobs", 1, "Of each peer, one after another with the same caches.")
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
@click.option("--caches", type=click.Path(path_type=Path), help="A folder for what is compiled, which stays.")
@limit_option
def main(
    run: Run,
    ranks: int,
    peers: Sequence[str],
    widths: Sequence[str],
    layers: Sequence[int],
    tokens: Sequence[int],
    variables: Sequence[tuple[str, str]],
    jobs: int,
    caches: Path | None,
    **options: Any,
) -> None:
    """Runs the benchmark."""
    if ranks < 4 and any(PEERS[peer].sharing == "hybrid" for peer in peers):
        raise click.UsageError(f"hybrid sharing takes at least 4 ranks, not {ranks}: leave its peers out of --peers")
    options["variables"] = {**choose_variables(os.environ), **dict(variables)}
    common = {**run.machine.place(), **options}
    # Peers in one process share entries in memory, which would then be missing in a peer's folder for a later job.
    groups = [[peer] for peer in peers] if jobs > 1 else _group_families(peers)
    with TemporaryDirectory(prefix="fusioncache-distributed-", ignore_cleanup_errors=True) as own:
        kept = Path(own) if caches is None and jobs > 1 else caches
        for width, group, number in product(widths, groups, range(1, jobs + 1)):
            specs = [
                PointSpec(peer=peer, width=width, layers=depth, tokens=count, job=number, **common)
                for depth, count, peer in product(layers, tokens, group)
            ]
            run_points(run, specs, ranks, kept and kept.resolve())
    _finish(run)


def _group_families(peers: Sequence[str]) -> list[list[str]]:
    """Returns the peers by family. One job measures the peers of a family."""
    families = dict.fromkeys(PEERS[peer].family for peer in peers)
    return [[peer for peer in peers if PEERS[peer].family == family] for family in families]


def choose_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment variables that configure communication: NCCL's, and torch's for NCCL."""
    prefixes = ("NCCL_", "TORCH_NCCL_")
    return {name: value for name, value in environment.items() if name.startswith(prefixes)}


def run_points(run: Run, specs: Sequence[PointSpec], ranks: int, caches: Path | None) -> None:
    """Measures points of one family in a job. After a point that fails, a new job measures the remaining ones."""
    left = list(specs)
    while left:
        if run.limit is not None and (run.time_left() or 0) <= 0:
            run.add(*({**asdict(spec), "error": "no time was left"} for spec in left))
            return
        argument = {"specs": [asdict(spec) for spec in left], "device": left[0].device}
        where: dict[str, Any] = {"limit": run.time_left(), "caches": caches, "environment": left[0].variables}
        try:
            for answers in run_job("benchmarks.distributed.measure:measure", argument, ranks, **where):
                spec = left.pop(0)
                print_progress(f"{spec}: step {max(rank['step_ms'] for rank in answers):.1f} ms\n")
                _keep(run, {**asdict(spec), "ranks": answers})
        except ProcessFailed as failure:
            if left:  # otherwise the job failed after the last point
                _keep(run, describe_failure(asdict(left.pop(0)), failure))


def _keep(run: Run, point: Point) -> None:
    run.more["bits"] = compare_bits([*run.points, point])
    run.add(point)


def compare_bits(points: Sequence[Point]) -> list[dict[str, Any]]:
    """Returns for each of fusioncache's peers whether all ranks have the bits of the same peer in Thunder's order."""
    known = {
        (point["peer"], point["width"], describe_setting(point)): point for point in points if "error" not in point
    }
    compared = []
    for (name, width, setting), point in known.items():
        other = f"{name}-thunder-order"
        if other in PEERS and (other, width, setting) in known:
            equal = _list_bits(point) == _list_bits(known[other, width, setting])
            compared.append({"peer": name, "other": other, "width": width, "setting": setting, "equal": equal})
    return compared


def _list_bits(point: Point) -> list[Any]:
    return [(rank["loss_bits"], rank["gradient_bits"]) for rank in point["ranks"]]


def check_losses(points: Sequence[Point]) -> None:
    """Sets ``correct`` in each point of shared sequences: all losses are close to those of the first such peer."""
    first: dict[tuple[str, str], Sequence[float]] = {}
    for point in points:
        if "error" in point or PEERS[point["peer"]].sharing != "sequence":
            continue
        expected = first.setdefault((point["width"], describe_setting(point)), point["ranks"][0]["losses"])
        pairs = [pair for rank in point["ranks"] for pair in zip(rank["losses"], expected, strict=True)]
        point["correct"] = all(abs(loss - right) <= _CLOSE * abs(right) for loss, right in pairs)


def _finish(run: Run) -> None:
    check_losses(run.points)
    for one in run.more.get("bits", ()):
        verdict = "the same bits" if one["equal"] else "other bits: error"
        run.notes.append(f"{one['peer']} and {one['other']}, {one['width']}, {one['setting']}: {verdict}")
        for point in run.points:
            if (point["peer"], point["width"], describe_setting(point)) == (one["peer"], one["width"], one["setting"]):
                point["correct"] = one["equal"]
    columns = {
        "<peer": pick("peer"),
        "<setting": describe_setting,
        **{name: _pick_most(name) for name in ("step_ms", "fastest_ms", "slowest_ms")},
        **{name: _pick_most("timeline", name) for name in ("exposed", "communication", "idle", "gaps")},
        "GiB": _pick_most("bytes_peak", scale=2**-30),
        "first, s": _pick_most("first_step"),
        "compiles": lambda point: " ".join(str(rank["compiles"]) for rank in point["ranks"]),
        "loaded": lambda point: " ".join(str(rank["programs"].get("loaded", "")) for rank in point["ranks"]),
        "further, s": _list_further,
    }
    caption = "of the rank that has most of each; times of kernels in microseconds; counts of each rank"
    run.finish("shared training steps, each rank with its own tokens", columns, caption)


def _pick_most(*path: str, scale: float = 1.0) -> Callable[[Point], str]:
    def cell(point: Point) -> str:
        found = [
            rank[path[0]] and rank["timeline"][path[1]] if len(path) > 1 else rank[path[0]] for rank in point["ranks"]
        ]
        return "" if None in found else f"{scale * max(found):.2f}"

    return cell


def _list_further(point: Point) -> str:
    """Returns the slowest rank's seconds of the first step at each further length."""
    steps = zip(*(rank.get("further", ()) for rank in point["ranks"]), strict=True)
    return " ".join(f"{max(one['seconds'] for one in each):.2f}" for each in steps)


if __name__ == "__main__":
    main()
