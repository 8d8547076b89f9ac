"""Checks every model at every batch size and length, and that it compiles nothing from the third setting on.

In a process of its own, a model takes a training step at each batch size and length, first with Thunder alone, then
with one ``FusionCache``. Thunder finishes before the ``FusionCache`` is made, so that fusioncache cannot affect it. It
takes each step twice, which shows which tensors can be compared bit for bit. The output and all gradients are compared.
With the backend ``eager`` all bits must equal Thunder's. Other backends may sum in another order, so a tensor may
differ by ``--epsilons`` times the dtype's epsilon times its largest magnitude. Sizes of 1 are never generalized:
settings with one row or one token are counted separately.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import thunder
import torch

from benchmarks import zoo
from benchmarks.common.counting import use_backend
from benchmarks.common.runner import Columns, Point
from benchmarks.common.tensors import compare, cotangent, name_results
from benchmarks.common.thunder_jit import executors, make_transform

_FIRST = 2
"""Number of settings of a kind that may compile: one for its own sizes, and one for any sizes."""

Call = Callable[..., torch.Tensor]


def measure(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the results at each batch size and length, in order."""
    backend, wanted, most = options["backend"], (options["batches"], options["lengths"]), max(options["lengths"])
    torch.use_deterministic_algorithms(True, warn_only=True)
    # After eight graphs Dynamo runs a model eagerly, which would compare torch with torch.
    torch._dynamo.config.recompile_limit = 8 * len(list(product(*wanted)))
    use_backend(backend)
    about = (options[name] for name in ("model", "layers", "device", "dtype"))
    workload = zoo.make(*about, sequence=most, batch=max(options["batches"]))
    settings = [setting for setting in product(*wanted) if setting[0] <= len(workload.inputs[0])]
    reference = workload.compile(executors(backend))
    expected = {setting: [take_step(workload, reference, *setting, most) for _ in range(2)] for setting in settings}
    transform = make_transform(backend)
    compiled = workload.compile(executors(backend), [transform])
    steps = []
    for batch, length in settings:
        before, start = count(transform, compiled), time.perf_counter()
        found = take_step(workload, compiled, batch, length, most)
        seconds = round(time.perf_counter() - start, 3)
        counts = {name: value - before[name] for name, value in count(transform, compiled).items()}
        own, again = expected.pop((batch, length))
        step = {"batch": batch, "length": length, "kind": name_kind(batch, length), "seconds": seconds}
        steps.append(step | counts | compare(found, own, again))
    stats = transform.stats()
    names = ("own_sizes", "passes_repeated", "programs_interpreted")
    reasons = {name: dict(getattr(stats, name)) for name in names}
    return {"layers": workload.layers, "way": workload.way, "steps": steps, **reasons}


def take_step(workload: zoo.Workload, call: Call, batch: int, length: int, most: int) -> dict[str, torch.Tensor]:
    """Returns the output and the gradients of the parameters, for inputs cut to a batch size and a length."""
    workload.model.zero_grad(set_to_none=True)
    output = call(*(cut(each, batch, length, most) for each in workload.inputs))
    output.backward(cotangent(output))
    return {name: tensor.clone() for name, tensor in name_results(workload.model, output).items()}


def cut(tensor: torch.Tensor, batch: int, length: int, most: int) -> torch.Tensor:
    """Returns the first rows of an input, with each dimension of size ``most`` cut to a length."""
    rows = tensor[:batch]
    for dimension in range(1, rows.dim()):
        if rows.shape[dimension] == most:
            rows = rows.narrow(dimension, 0, length)
    return rows.contiguous()


def count(transform: Any, compiled: Any) -> dict[str, int]:
    """Returns counts so far: compilations, generalizations and their uses, replayed and filled-in programs, traces."""
    stats = transform.stats()
    names = ("compiles", "generalizations", "general_hits", "programs_replayed", "programs_filled")
    counts = {name: getattr(stats, name) for name in names}
    traced = isinstance(compiled, thunder.ThunderModule)
    return counts | ({"traces": thunder.compile_stats(compiled).cache_misses} if traced else {})


def name_kind(batch: int, length: int) -> str:
    """Returns which sizes are 1. These are never generalized, so that such settings share nothing with others."""
    return ", ".join([*["one row"] * (batch == 1), *["one token"] * (length == 1)]) or "many"


def find_problem(point: Mapping[str, Any]) -> str | None:
    """Returns the first problem with the steps of a model, or None."""
    epsilons = 0.0 if point["backend"] == "eager" else point["epsilons"]
    for step in point["steps"]:
        where = f"{step['batch']} rows of {step['length']}"
        # A tensor that differs between two runs of the reference cannot be compared.
        differing = [name for name in step["differing"] if name not in step["not_repeatable"]]
        if step["not_finite"]:
            return f"{where}: {step['not_finite'][0]} is not finite"
        if differing and step["largest_epsilons"] > epsilons:
            most = f"{step['largest_epsilons']:.3g} epsilons at most"
            return f"{where}: {len(differing)} tensors differ, the first is {differing[0]}; {most}"
    for step in list_later(point["steps"]):
        if step["compiles"]:
            return f"{step['batch']} rows of {step['length']}: {step['compiles']} compiled"
    return None


def list_later(steps: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Returns the steps from the third one of each kind on, except the first with a second number of rows.

    A graph that is compiled for any length is fixed to one number of rows until there is a second number.
    """
    seen: Counter[str] = Counter()
    rows: defaultdict[str, set[int]] = defaultdict(set)
    later = []
    for step in steps:
        known, batch = rows[step["kind"]], step["batch"]
        seen[step["kind"]] += 1
        if seen[step["kind"]] > _FIRST and (batch in known or len(known) > 1):
            later.append(step)
        known.add(batch)
    return later


def _sum(name: str, *, later: bool = False) -> Callable[[Point], str]:
    def cell(point: Point) -> str:
        return str(sum(step.get(name, 0) for step in (list_later(point["steps"]) if later else point["steps"])))

    return cell


COLUMNS: Columns = {
    "steps": lambda point: str(len(point["steps"])),
    **{name: _sum(name) for name in ("tensors", "bitwise", "compiles", "traces")},
    **{f"later {name}": _sum(name, later=True) for name in ("compiles", "traces")},
    **{name: _sum(f"programs_{name}") for name in ("replayed", "filled")},
    "epsilons": lambda point: f"{max(step['largest_epsilons'] for step in point['steps']):.3g}",
}
