"""One process: the first step of one model, forward and backward, in seconds of its own and of its child processes."""

from __future__ import annotations

import resource
import time
import warnings
from collections.abc import Mapping
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.common.processes import serve
from benchmarks.hugging_face.models import build
from fusioncache.observe.record.stats import NOT_GIVEN


def measure(argument: Mapping[str, Any]) -> dict[str, Any]:
    """Returns seconds, counts and the loss.

    Args:
        argument: ``model``, and whether ``thunder`` is left out: what it would compile runs as it is then.
    """
    import thunder
    from thunder.dynamo import thunderfx

    import fusioncache

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    model, inputs = build(argument["model"])
    transform = fusioncache.FusionCache(jobs=0)
    compiled = thunderfx(model, executors=fusioncache.executors(), transforms=[transform])
    with patch.object(thunder, "jit", thunder.jit if argument["thunder"] else lambda module, **options: module):
        start, before = time.perf_counter(), _read()
        loss = compiled(**inputs).loss
        loss.backward()
        wall, after = time.perf_counter() - start, _read()
    stats = transform.stats()
    graphs = compiled._backend.subgraph_infos
    return {
        "cpu_seconds": sum(after) - sum(before),
        "cpu_seconds_of_children": after[1] - before[1],
        "wall_seconds": wall,
        "graphs": len(graphs),
        "parts": sum(len(graph.submodule_to_compiled_functions) for graph in graphs),
        "parts_with_thunder": sum(len(graph.thunder_compiled_fns) for graph in graphs),
        "programs_made": stats.programs_made,
        "programs_loaded": stats.programs_loaded,
        "programs_refused": dict(stats.programs_refused),
        "program_seconds": dict(stats.program_seconds),
        "phases": {name: value for name, value in transform.cache.ledger.phases().to_dict().items() if value},
        "not_given": {reason: count for reason, count in stats.bypasses.items() if reason.startswith(NOT_GIVEN)},
        "compiles": stats.compiles,
        "loss": loss.item(),
        "gradients": sum(each.grad.double().abs().sum().item() for each in model.parameters() if each.grad is not None),
    }


def _read() -> tuple[float, float]:
    """Returns the CPU seconds of this process, and of its child processes that ended."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    own, children = (each.ru_utime + each.ru_stime for each in used)
    return own, children


if __name__ == "__main__":
    serve(measure)
