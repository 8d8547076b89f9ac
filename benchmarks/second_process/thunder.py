"""One process of ``benchmarks/second_process`` with Thunder alone."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import thunder
import torch

from benchmarks.common.counting import use_backend
from benchmarks.common.processes import serve
from benchmarks.common.steps import synchronize
from benchmarks.common.tensors import digest_all, name_results
from benchmarks.common.thunder_jit import jit, warm_up_jit
from benchmarks.first_step.spec import PointSpec
from benchmarks.first_step.work import make_point_model


def measure(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the seconds of tracing and of all else, and a digest of the bits."""
    spec = PointSpec.read(options)
    use_backend(spec.model.backend)
    torch.use_deterministic_algorithms(True)  # to warn only leaves attention's gradients to differ
    warm_up_jit(spec.model.backend, spec.model.device)
    model, example = make_point_model(spec)
    synchronize(spec.model.device)
    start = time.perf_counter()
    compiled = jit(model, spec.model.backend)
    output = compiled(example)
    output.sum().backward()
    synchronize(spec.model.device)
    total = time.perf_counter() - start
    traced = thunder.compile_stats(compiled).last_prologue_execution_start / 1e9 - start
    seconds = {"trace": traced, "rest": total - traced, "total": total}
    return {"seconds": seconds, "digest": digest_all(name_results(model, output))}


if __name__ == "__main__":
    serve(measure)
