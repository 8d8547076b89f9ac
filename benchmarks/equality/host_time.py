"""How long the host takes to launch a training step."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

from benchmarks.common.steps import synchronize
from benchmarks.zoo import Workload

_WARM_UP = 5


def measure_host_time(workload: Workload, steps: Mapping[str, Callable[..., Any]], rounds: int) -> dict[str, Any]:
    """Returns the median host time of a forward and a backward pass, in microseconds, of each of some compiled models.

    A GPU is synchronized before and after a pass and never within, so that what counts is the launching. On a CPU the
    computation itself is in it. The models take turns, and the one that begins changes with every round, so that a
    machine that slows down, or a cache that warms up, does so for all of them.

    Args:
        workload: the model, its inputs and its loss.
        steps: the compiled models, by name.
        rounds: how often each is measured.

    Returns:
        ``microseconds``, by name, ``rounds``, and ``ratio``: of the last model's median to the first's.
    """
    taken: dict[str, list[float]] = {name: [] for name in steps}
    names = list(steps)
    for number in range(-_WARM_UP, rounds):
        for name in names if number % 2 else reversed(names):
            microseconds = _step(workload, steps[name])
            if number >= 0:
                taken[name].append(microseconds)
    medians = {name: median(values) for name, values in taken.items()}
    return {
        "microseconds": {name: round(value, 1) for name, value in medians.items()},
        "ratio": round(medians[names[-1]] / medians[names[0]], 4),
        "rounds": rounds,
    }


def _step(workload: Workload, compiled: Callable[..., Any]) -> float:
    workload.model.zero_grad(set_to_none=True)
    synchronize(workload.inputs[0].device.type)
    start = time.perf_counter()
    workload.loss(compiled(*workload.inputs)).backward()
    taken = time.perf_counter() - start
    synchronize(workload.inputs[0].device.type)
    return taken * 1e6
