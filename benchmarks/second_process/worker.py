"""One process of ``benchmarks/second_process`` with fusioncache."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import thunder
import torch

import fusioncache
from benchmarks.common.processes import serve
from benchmarks.common.steps import synchronize
from benchmarks.common.tensors import digest_all, name_results
from benchmarks.common.thunder_jit import jit, warm_up_jit
from benchmarks.first_step.spec import PointSpec
from benchmarks.first_step.work import make_point_model

_STAGES = ("key", "reads", "load", "build")


def measure(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the seconds of each part, the counts, and a digest of the bits."""
    spec = PointSpec.read(options)
    torch.use_deterministic_algorithms(True)  # to warn only leaves attention's gradients to differ
    another = fusioncache.Cache(record=False, store=False)
    other = fusioncache.FusionCache(cache=another, backend=spec.model.backend, jobs=0)
    warm_up_jit(spec.model.backend, spec.model.device, other)
    model, example = make_point_model(spec)
    synchronize(spec.model.device)
    start = time.perf_counter()
    transform = fusioncache.FusionCache(cache=fusioncache.Cache(record=False), backend=spec.model.backend)
    compiled = jit(model, spec.model.backend, transform)
    output = compiled(example)
    output.sum().backward()
    synchronize(spec.model.device)
    total, stats = time.perf_counter() - start, transform.stats()
    times = thunder.compile_stats(compiled)
    before = times.last_prologue_execution_start / 1e9 - start
    seconds = {stage: stats.program_seconds.get(stage, 0.0) for stage in _STAGES}
    seconds["trace"] = before - sum(seconds.values())
    seconds["guards"] = (times.last_prologue_execution_stop - times.last_prologue_execution_start) / 1e9
    seconds |= {"compile": stats.compile_seconds, "kernels": stats.load_seconds}
    return {
        "seconds": seconds | {"rest": total - sum(seconds.values()), "total": total},
        "counts": {
            "programs_loaded": stats.programs_loaded,
            "programs_made": stats.programs_made,
            "programs_refused": dict(stats.programs_refused),
            "traces": times.cache_misses,
            "compiles": stats.compiles,
            "loads": stats.loads,
        },
        "digest": digest_all(name_results(model, output)),
    }


if __name__ == "__main__":
    serve(measure)
