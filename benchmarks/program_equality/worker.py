"""One model in a process of its own, trained for a few steps by Thunder, or with fusioncache over a store.

Left behind are digests: of each step's output, loss and gradients, and of the parameters in the end. In the second
process Thunder's interpreter must not be called.
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr
from typing import Any

import torch

from benchmarks import zoo
from benchmarks.common.counting import use_backend
from benchmarks.common.processes import serve
from benchmarks.common.tensors import digest
from benchmarks.common.thunder_jit import executors, make_transform
from benchmarks.program_equality.interpretation import watch_interpreter
from benchmarks.program_equality.spec import SECOND, STEPS, THUNDER
from benchmarks.zoo.spec import ZooSpec
from fusioncache import FusionCache

_EXPLANATION = "fusioncache: the program of "


def measure(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the digests, what was counted, and what was said of programs that were derived again.

    Args:
        options: ``spec``, and ``process``, which is one of those in ``benchmarks/program_equality/spec.py``.
    """
    spec, process = ZooSpec(**options["spec"]), options["process"]
    torch.use_deterministic_algorithms(True, warn_only=True)
    workload = zoo.make(spec.model, spec.layers, spec.device, spec.dtype)
    transforms = []
    if process == THUNDER:
        use_backend(spec.backend)
    else:
        transforms.append(make_transform(spec.backend, explain=True, jobs=0))
    compiled = workload.compile(executors(spec.backend), transforms)
    found: dict[str, Any] = {"layers": workload.layers, "way": workload.way}
    said = io.StringIO()
    with watch_interpreter(allowed=process != SECOND) as interpretation, redirect_stderr(said):
        try:
            found |= train(workload, compiled)
        except Exception as error:  # what a program was refused for says more than that it is missing
            found["error"] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    sys.stderr.write(said.getvalue())
    found["traces"] = interpretation.traces
    found["explained"] = [line for line in said.getvalue().splitlines() if line.startswith(_EXPLANATION)]
    for transform in transforms:
        found |= count(transform)
    return found


def train(workload: zoo.Workload, compiled: Callable[..., torch.Tensor]) -> dict[str, Any]:
    """Trains a model.

    Returns:
        ``digests`` of what it computed, by name, and ``seconds`` of the first step.

    Raises:
        ValueError: if something that it computed is not finite.
    """
    model = workload.model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    digests: dict[str, str] = {}
    seconds = []
    torch.manual_seed(0)
    for step in range(1, STEPS + 1):
        start = time.perf_counter()
        output = compiled(*workload.inputs)
        loss = workload.loss(output)
        loss.backward()
        found = {"output": output, "loss": loss}
        found |= {f"gradient of {name}": p.grad for name, p in model.named_parameters() if p.grad is not None}
        digests |= {f"{name}, step {step}": digest(tensor) for name, tensor in found.items()}
        seconds.append(time.perf_counter() - start)
        if not all(tensor.isfinite().all() for tensor in found.values()):
            raise ValueError(f"step {step} computes what is not finite")
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    digests |= {f"{name} in the end": digest(tensor) for name, tensor in model.state_dict().items()}
    return {"digests": digests, "seconds": round(seconds[0], 3)}


def count(transform: FusionCache) -> dict[str, Any]:
    """Returns what a transform counted."""
    stats = transform.stats()
    names = ("programs_loaded", "programs_made", "compiles", "loads", "regions", "templates")
    counts = {name: getattr(stats, name) for name in names}
    reasons = {name: dict(getattr(stats, name)) for name in ("programs_refused", "unkept", "bypasses")}
    parts = {name: round(seconds, 3) for name, seconds in stats.program_seconds.items()}
    return {**counts, **reasons, "program_seconds": parts}


if __name__ == "__main__":
    serve(measure)
