"""Checks that every model trains with the same bits, and counts its templates at each depth.

In a process of its own, a model is trained by Thunder with and without fusioncache. The reference is plain Thunder or,
with ``lru``, Thunder with nvFuser's ``LruFusionCache``. It is traced, compiled and run before the first ``FusionCache``
is made, so that fusioncache cannot affect it. Both start from the same parameters and the same random state. Compared
are the output, the loss, every gradient, every parameter after one step of AdamW, and the output after it. Both do this
twice, because a later step takes another path through both. The second run of the reference also shows which tensors
can be compared bit for bit. It is an error if the number of templates grows with the depth.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import torch

from benchmarks import zoo
from benchmarks.common.counting import count_compiles, count_folds, use_backend
from benchmarks.common.runner import Columns, Point, pick, take_turns
from benchmarks.common.steps import synchronize, use_deterministic_algorithms
from benchmarks.common.tensors import compare
from benchmarks.common.thunder_jit import executors, make_transform
from benchmarks.zoo import Workload

REFERENCES = ("plain", "lru")
_WARM_UP = 6
_COUNTS = ("regions", "templates", "hits", "compiles", "reference_compiles", "folded")

Tensors = dict[str, torch.Tensor]


def measure(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the counts and the differences of one spec."""
    backend, against = options["backend"], options["reference"]
    # Otherwise gradients of attention and embeddings would differ from run to run.
    use_deterministic_algorithms(True, warn_only=True)
    use_backend(backend)
    counter = count_compiles(backend, lru=against == "lru")
    workload = zoo.make(*(options[name] for name in ("model", "layers", "device", "dtype", "width")))
    start = {name: value.detach().clone() for name, value in workload.model.state_dict().items()}

    reference = workload.compile(executors(backend))
    expected = train(workload, reference, start)
    again = train(workload, reference, start)
    reference_compiles = counter.compiles
    folds = count_folds()
    transform = make_transform(backend)
    cached = workload.compile(executors(backend), [transform])
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
    if options["rounds"]:
        steps = {against: reference, "fusioncache": cached}
        result["host"] = measure_host_time(workload, steps, options["rounds"])
    return result


def join(first: Tensors, later: Tensors) -> Tensors:
    """Returns the results of two training steps in one dict. The names of the second step's end in ``later``."""
    return {**first, **{f"{name}, later": value for name, value in later.items()}}


def train(workload: zoo.Workload, compiled: Callable[..., torch.Tensor], start: Tensors) -> Tensors:
    """Returns the results of a training step from these parameters and of a forward pass after it."""
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


def measure_host_time(workload: Workload, steps: Mapping[str, Callable[..., Any]], rounds: int) -> dict[str, Any]:
    """Returns the median host time of a forward and a backward pass of each compiled model, in microseconds.

    A GPU is synchronized before and after both passes but not within them, so that only the launching is timed. On a
    CPU the time includes the computation. The models take turns, and each round reverses their order, so that a machine
    that slows down or a cache that warms up affects all of them.

    Args:
        workload: the model, its inputs and its loss.
        steps: the compiled models, by name.
        rounds: how often each is measured.

    Returns:
        ``microseconds`` by name, ``rounds``, and ``ratio``: the last model's median divided by the first's.
    """
    taken: dict[str, list[float]] = {name: [] for name in steps}
    names = list(steps)
    for name in take_turns(names, _WARM_UP + rounds):
        taken[name].append(_time_step(workload, steps[name]))
    medians = {name: median(values[_WARM_UP:]) for name, values in taken.items()}
    return {
        "microseconds": {name: round(value, 1) for name, value in medians.items()},
        "ratio": round(medians[names[-1]] / medians[names[0]], 4),
        "rounds": rounds,
    }


def _time_step(workload: Workload, compiled: Callable[..., Any]) -> float:
    workload.model.zero_grad(set_to_none=True)
    synchronize(workload.inputs[0].device.type)
    start = time.perf_counter()
    workload.loss(compiled(*workload.inputs)).backward()
    taken = time.perf_counter() - start
    synchronize(workload.inputs[0].device.type)
    return taken * 1e6


def find_problem(point: Mapping[str, Any]) -> str | None:
    """Returns the problem that a comparison found, or None."""
    if point["regions"] == 0:  # for example, Dynamo gave up and ran the model eagerly
        return "there are no regions to share"
    if point["not_finite"]:
        return f"not finite: {point['not_finite'][0]}"
    # A tensor that differs between two runs of the reference cannot be compared.
    differing = [name for name in point["differing"] if name not in point["not_repeatable"]]
    if differing:
        largest = f"{point['largest_epsilons']:.3g} epsilons at most"
        return f"{len(differing)} of {point['tensors']} differ, the first is {differing[0]}; {largest}"
    return None


def mark_growth(points: Sequence[Point]) -> None:
    """Adds an error to each point with more templates than its model's shallowest point that must have all of them."""
    first: dict[str, Point] = {}
    for point in points:
        if "templates" not in point or point["layers"] < zoo.find_entry(point["model"]).steady:
            continue
        base = first.setdefault(point["model"], point)
        if point["templates"] > base["templates"]:
            grown = f"{point['templates']} templates, at {base['layers']} layers {base['templates']}"
            point["error"] = f"{point['error']}; {grown}" if "error" in point else grown


COLUMNS: Columns = {
    **{name: pick(name) for name in _COUNTS},
    "bitwise": lambda point: f"{point['bitwise']}/{point['tensors']}",
    "host, to the reference's": pick("host", "ratio", digits=3),
}
