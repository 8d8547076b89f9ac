"""One model at one depth, in a process of its own: trained by Thunder with and without fusioncache, and compared.

The reference is traced, compiled and run before the first ``FusionCache`` is made, so that nothing of fusioncache is in
its way. Each of the two starts from the same parameters and the same random state, and leaves behind: the output, the
loss, every gradient, every parameter after one step of AdamW, and the output after it. Both do that twice, as a later
step goes another way through both. The reference so shows whether the model can be compared bit for bit at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from benchmarks import zoo
from benchmarks.common.counting import count_compiles, count_folds, use_backend
from benchmarks.common.processes import serve
from benchmarks.common.tensors import compare
from benchmarks.common.thunder_jit import executors, make_transform
from benchmarks.equality.host_time import measure_host_time
from benchmarks.equality.spec import Spec

Tensors = dict[str, torch.Tensor]


def measure(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the counts and the differences of one spec."""
    spec = Spec(**options)
    # So that the gradients of attention and embeddings, too, have the same bits every time.
    torch.use_deterministic_algorithms(True, warn_only=True)
    use_backend(spec.backend)
    counter = count_compiles(spec.backend, lru=spec.reference == "lru")
    workload = zoo.make(spec.model, spec.layers, spec.device, spec.dtype, spec.width)
    start = {name: value.detach().clone() for name, value in workload.model.state_dict().items()}

    reference = workload.compile(executors(spec.backend))
    expected = train(workload, reference, start)
    again = train(workload, reference, start)
    reference_compiles = counter.compiles
    folds = count_folds()
    transform = make_transform(spec.backend)
    cached = workload.compile(executors(spec.backend), [transform])
    first, later = (train(workload, cached, start) for _ in range(2))
    found = join(first, later)

    stats = transform.stats()
    result = {
        "layers": workload.layers,
        "real_layers": workload.real_layers,
        "way": workload.way,
        "regions": stats.regions,
        "templates": stats.templates,
        "hits": stats.hits,
        "compiles": stats.compiles,
        "reference_compiles": reference_compiles,
        "bypasses": dict(stats.bypasses),
        "folded": folds(),
        **compare(found, join(expected, expected), join(again, again)),
    }
    if spec.rounds:
        steps = {spec.reference: reference, "fusioncache": cached}
        result["host"] = measure_host_time(workload, steps, spec.rounds)
    return result


def join(first: Tensors, later: Tensors) -> Tensors:
    """Returns what two steps of training left behind."""
    return {**first, **{f"{name}, later": value for name, value in later.items()}}


def train(workload: zoo.Workload, compiled: Callable[..., torch.Tensor], start: Tensors) -> Tensors:
    """Returns what a step of training from these parameters, and a forward pass after it, compute."""
    model = workload.model
    model.load_state_dict(start)
    model.zero_grad(set_to_none=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(0)
    output = compiled(*workload.inputs)
    loss = workload.loss(output)
    loss.backward()
    results = {"output": output, "loss": loss}
    results |= {f"gradient of {name}": p.grad for name, p in model.named_parameters() if p.grad is not None}
    results = {name: value.detach().clone() for name, value in results.items()}
    optimizer.step()
    results |= {f"{name} after a step": p.detach().clone() for name, p in model.named_parameters()}
    results["output after a step"] = compiled(*workload.inputs).detach().clone()
    return results


if __name__ == "__main__":
    serve(measure)
