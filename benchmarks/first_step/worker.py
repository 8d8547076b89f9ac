"""One point of ``benchmarks/first_step`` with Thunder, measured in a process of its own.

Each phase is the time inside some of Thunder's functions, less that inside those of other phases:

- ``interpret``: the interpretation of the model's bytecode, which yields the first traces.
- ``prologue``: the checks that run before every call are made executable.
- ``grad``: the backward pass is derived, and later split off.
- ``claim``: executors claim the operations that they run.
- ``fuse``: the fusion executor groups operations into regions.
- ``rematerialize``: what regions pass to each other is cut down.
- ``cleanup``: dead code is dropped, and ``del`` statements are inserted.
- ``codegen``: traces are printed as Python and compiled by it.
- ``fusioncache``: regions become templates, keys and calls.
- ``compile``: the backend compiles in this process, each time up to the end of the first execution.
- ``rest``: what remains of ``total``: execution, autograd, what Thunder does between the passes, waiting for others.

``total`` is the wall time from the making of ``FusionCache`` to the end of the backward pass, synchronized. ``trace``
is that up to the first call of the prologue, which runs when all is traced, and ``after_trace`` the remainder.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import thunder

import fusioncache
from benchmarks.common.processes import serve
from benchmarks.common.rematerialization import recompute_sums
from benchmarks.common.steps import synchronize
from benchmarks.common.thunder_jit import jit, warm_up_jit
from benchmarks.first_step.crew import wait_for_crew
from benchmarks.first_step.passes import time_passes
from benchmarks.first_step.spec import PointSpec
from benchmarks.first_step.stopwatch import Stopwatch
from benchmarks.first_step.work import make_point_model


def measure(options: Mapping[str, Any]) -> dict[str, float]:
    """Returns the seconds of each phase and part."""
    spec = PointSpec.read(options)
    other = _make_transform(replace(spec, store=False, jobs=None))
    warm_up_jit(spec.model.backend, spec.model.device, other)
    model, example = make_point_model(spec)
    synchronize(spec.model.device)
    stopwatch = Stopwatch()
    start = time.perf_counter()
    transform = _make_transform(spec)
    made = time.perf_counter() - start
    # Afterwards: what installs shortcuts must find Thunder's own functions.
    time_passes(stopwatch, spec.model.backend)
    if spec.start == "ready":
        wait_for_crew()
    with recompute_sums(spec.model.recompute):
        start = time.perf_counter()
        compiled = jit(model, spec.model.backend, transform)
        compiled(example).sum().backward()
        synchronize(spec.model.device)
        total = made + time.perf_counter() - start
    traced = made + thunder.compile_stats(compiled).last_prologue_execution_start / 1e9 - start
    seconds = dict(stopwatch.seconds)
    parts = {"trace": traced, "after_trace": total - traced}
    return seconds | {"rest": total - sum(seconds.values()), "total": total} | parts


def _make_transform(spec: PointSpec) -> fusioncache.FusionCache:
    cache = fusioncache.Cache(record=False, store=spec.store)
    options: dict[str, Any] = {} if spec.jobs is None else {"jobs": spec.jobs}
    return fusioncache.FusionCache(
        cache=cache, backend=spec.model.backend, fast_tracing=spec.tracing == "fast", **options
    )


if __name__ == "__main__":
    serve(measure)
