"""One model at one depth, in a process of its own: trained by Thunder with and without fusioncache, and compared.

The reference is traced, compiled and run before the first ``FusionCache`` is made, so that nothing of fusioncache is in
its way. Each of the two starts from the same parameters and the same random state, and leaves behind: the output, the
loss, every gradient, every parameter after one step of AdamW, and the output after it. The reference does that twice,
and so shows whether the model can be compared bit for bit at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import torch

import fusioncache
from benchmarks import zoo
from benchmarks.common.counting import Counter, count_nvfuser, count_regions
from benchmarks.common.executors import compile_regions_with, executors
from benchmarks.common.processes import serve
from benchmarks.equality.host_time import host_microseconds
from benchmarks.equality.spec import Point
from fusioncache.template.plan import Plan

Tensors = dict[str, torch.Tensor]


def measure(options: Mapping[str, Any]) -> dict[str, Any]:
    """The counts and the differences of one point."""
    point = Point(**options)
    # So that the gradients of attention and embeddings, too, have the same bits every time.
    torch.use_deterministic_algorithms(True, warn_only=True)
    compile_regions_with(point.backend)
    counter = Counter()
    _count(counter, point)
    workload = zoo.make(point.model, point.layers, point.device, point.dtype, point.width)
    start = {name: value.detach().clone() for name, value in workload.model.state_dict().items()}

    reference = workload.compile(executors(point.backend))
    expected = train(workload, reference, start)
    again = train(workload, reference, start)
    reference_compiles = counter.compiles
    folded = count_folded()
    transform = fusioncache.FusionCache(backend=point.backend, cache=fusioncache.Cache())
    cached = workload.compile(executors(point.backend), [transform])
    found = train(workload, cached, start)

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
        "folded": folded(),
        **compare(found, expected, again),
    }
    if point.rounds:
        steps = {point.reference: reference, "fusioncache": cached}
        result["host"] = host_microseconds(workload, steps, point.rounds)
    return result


def _count(counter: Counter, point: Point) -> None:
    if point.backend == "nvfuser":
        count_nvfuser(counter, lru=point.reference == "lru")
    else:
        count_regions(counter, point.backend)


def count_folded() -> Callable[[], int]:
    """Counts the regions that are run by folds, from now on."""
    transform: Any = import_module("fusioncache.trace.transform")
    choose, folded = transform.choose_plan, 0

    def counting(*args: Any, **kwargs: Any) -> Plan:
        nonlocal folded
        plan = choose(*args, **kwargs)
        folded += plan is Plan.FOLD
        return plan

    transform.choose_plan = counting
    return lambda: folded


def train(workload: zoo.Workload, compiled: Callable[..., torch.Tensor], start: Tensors) -> Tensors:
    """What a step of training from these parameters, and a forward pass after it, compute."""
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


def compare(found: Tensors, expected: Tensors, again: Tensors) -> dict[str, Any]:
    """How many tensors have the same bits, and what differs: all that is not in the first two counts is an error."""
    names = list(dict.fromkeys([*found, *expected]))
    differing = [name for name in names if not same_bits(found.get(name), expected.get(name))]
    largest = max((epsilons(found.get(name), expected.get(name)) for name in differing), default=0.0)
    return {
        "tensors": len(names),
        "bitwise": len(names) - len(differing),
        "differing": differing,
        "largest_epsilons": largest,
        "not_finite": [name for name, value in expected.items() if not value.isfinite().all()],
        "not_repeatable": [name for name, value in expected.items() if not same_bits(again.get(name), value)],
    }


def same_bits(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    """Whether they agree in type, shape and every bit: 0.0 is not -0.0 here, and a NaN is itself."""
    if one is None or other is None or (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    # A scalar has no last dimension to reinterpret.
    bits = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other)]
    return torch.equal(*bits)


def epsilons(one: torch.Tensor | None, other: torch.Tensor | None) -> float:
    """The largest difference, in units of the dtype's epsilon times the second tensor's largest magnitude."""
    if one is None or other is None or (one.dtype, one.shape) != (other.dtype, other.shape):
        return float("inf")
    scale = other.abs().max().double() * torch.finfo(other.dtype).eps
    difference = (one.double() - other.double()).abs().max()
    return float(difference / scale) if scale > 0 else float("inf") * bool(difference > 0)


if __name__ == "__main__":
    serve(measure)
