"""One point of ``benchmarks/first_step`` with torch.compile, measured in a process of its own.

``trace``, ``compile`` and ``rest`` are what the benchmark of peers takes them for, which says it in
``benchmarks/peers/torch_compile.py``. They add up to ``total``, the wall time from ``torch.compile`` to the end of the
backward pass, synchronized.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from benchmarks.common.processes import serve
from benchmarks.common.steps import synchronize, warm_up
from benchmarks.first_step.spec import PointSpec
from benchmarks.first_step.work import make_point_model
from benchmarks.peers.spec import PEERS
from benchmarks.peers.torch_compile import TorchCompile


def measure(options: Mapping[str, Any]) -> dict[str, float]:
    """Returns the seconds of each part."""
    spec = PointSpec.read(options)
    contender = TorchCompile(PEERS["torch.compile"], spec.model.backend)
    warm_up(contender.warm_up, spec.model.device, spec.model.dtype)
    model, example = make_point_model(spec)
    synchronize(spec.model.device)
    start = time.perf_counter()
    contender.compile(model)(example).sum().backward()
    synchronize(spec.model.device)
    total = time.perf_counter() - start
    spent = contender.spent()
    parts = {"trace": spent.trace, "compile": spent.compile, "after_trace": total - spent.trace}
    return parts | {"rest": total - spent.trace - spent.compile, "total": total}


if __name__ == "__main__":
    serve(measure)
