"""Runs the points of ``benchmarks/first_step``: one after the other, or some at once on cores of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.common import processes
from benchmarks.common.cores import share_cores
from benchmarks.common.results import say
from benchmarks.first_step.spec import PointSpec

Seconds = dict[str, float]

_EARLIER = Path(__file__).with_name("earlier.py")
_WORKERS = {"own": "benchmarks.first_step.worker", "torch.compile": "benchmarks.first_step.peer"}
_WORKERS["fast"] = _WORKERS["own"]


def run_all(
    specs: Sequence[PointSpec],
    parallel: int,
    before: Path | None,
    save: Callable[[PointSpec, Seconds | str], None],
) -> None:
    """Measures each point.

    Args:
        specs: the points. They are begun in this order; if several run at once the deepest, which take longest, first.
        parallel: how many run at once, each on as many cores of its own. One alone has all of them.
        before: the root of the earlier state, for the points that want one.
        save: is given each point with its seconds, or with how it failed, as soon as that is known.
    """
    if parallel > 1:
        specs = sorted(specs, key=lambda spec: -spec.model.layers)
    with ThreadPoolExecutor(parallel, initializer=share_cores(parallel)) as pool:
        found = {pool.submit(_measure, spec, before): spec for spec in specs}
        for future in as_completed(found):
            save(found[future], future.result())


def _measure(spec: PointSpec, before: Path | None) -> Seconds | str:
    environment = {"FUSIONCACHE_STORE": str(int(spec.store))}
    if spec.tracing != "fast":
        environment["FUSIONCACHE_JOBS"] = "0"  # nobody else is to take time from the tracing that is measured
    try:
        if spec.tracing == "before":
            assert before is not None
            seconds = processes.call(_EARLIER, _earlier_options(spec), environment=environment, root=before)
        else:
            seconds = processes.call(_WORKERS[spec.tracing], asdict(spec), environment=environment)
    except processes.ProcessFailed as failure:
        say(f"{spec}: failed, {failure.format_message()}\n")
        return str(failure)
    say(f"{spec}: {seconds['total']:.2f} s\n")
    return seconds


def _earlier_options(spec: PointSpec) -> Mapping[str, Any]:
    """Returns the options of a point as the worker of commit 174f39c takes them."""
    return {**asdict(spec.model), "mode": "cached", "tracing": "fast"}
