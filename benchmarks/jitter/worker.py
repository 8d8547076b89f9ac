"""Takes many steps one way, and says how long they took, and what happened in the slowest."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import repeat
from statistics import median
from typing import Any

from benchmarks.common.processes import serve
from benchmarks.common.spec import ModelSpec
from benchmarks.common.turns import turn
from benchmarks.jitter.events import Counters, Reading, explain
from benchmarks.jitter.spec import BESIDE, SLOWEST

WARM_UP = 20
"""How many steps come before those that count: by then all is compiled, and Thunder's prologue was rewritten."""

_MOST_SHOWN = 10


def measure(argument: Mapping[str, Any]) -> dict[str, Any]:
    """Returns milliseconds of steps, and what happened in the slowest."""
    import torch

    from benchmarks.common.models import make_model
    from benchmarks.common.steps import synchronize

    torch.set_num_threads(1)  # others wait for each other, and narrow layers have nothing for them to do
    spec = ModelSpec(**argument["spec"])
    model, example = make_model(spec)
    counters = Counters()
    compiled = _compile(argument["way"], model, spec, counters)
    batches = _load(example, BESIDE[argument["beside"]], WARM_UP + spec.steps)

    def step(tokens: Any) -> float:
        synchronize(spec.device)
        start = time.perf_counter()
        output = compiled(tokens)
        output.backward(torch.ones_like(output))
        synchronize(spec.device)
        return time.perf_counter() - start

    for _ in range(WARM_UP):
        step(next(batches).to(spec.device))
    seconds, readings = [], [counters.read()]
    with turn():
        for tokens in batches:
            tokens = tokens.to(spec.device)
            before = counters.read()
            seconds.append(step(tokens))
            readings += [before, counters.read()]
            model.zero_grad(set_to_none=True)
    return summarize(seconds, list(zip(readings[1::2], readings[2::2], strict=True)))


def summarize(seconds: Sequence[float], readings: Sequence[tuple[Reading, Reading]]) -> dict[str, Any]:
    """Returns quantiles in milliseconds, and of the slowest steps when they were and what happened in them."""
    slowest = sorted(range(len(seconds)), key=lambda index: -seconds[index])
    explained = slowest[: max(1, math.ceil(SLOWEST * len(seconds)))]
    found = {index: explain(*readings[index], seconds[index]) for index in explained}
    causes = Counter(_name_cause(found[index], seconds[index] - median(seconds)) for index in explained)
    return {
        "steps": len(seconds),
        "milliseconds": {
            "median": round(1e3 * median(seconds), 4),
            "0.99": round(1e3 * _quantile(seconds, 0.99), 4),
            "0.999": round(1e3 * _quantile(seconds, 0.999), 4),
            "slowest": round(1e3 * max(seconds), 4),
        },
        "slower_than_twice": sum(each > 2 * median(seconds) for each in seconds),
        "causes": dict(causes),
        "slow_steps": [
            {"step": index, "milliseconds": round(1e3 * seconds[index], 4), "happened": found[index]}
            for index in explained[:_MOST_SHOWN]
        ],
    }


def _quantile(values: Sequence[float], share: float) -> float:
    """Returns the least value that so many are not above."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def _name_cause(happened: Mapping[str, float], excess: float) -> str:
    """Returns what took most of what a step took longer than the median; counts of milliseconds decide."""
    if happened.get("compiled or loaded"):
        return "compiled or loaded"
    if happened.get("CUDA segments"):
        return "CUDA segments"
    half = 1e3 * excess / 2
    if happened.get("ms collecting", 0) >= half:
        return "collecting garbage"
    if happened.get("ms not running", 0) >= half:
        return "another thread ran" if happened.get("times another thread ran") else "the thread did not run"
    return "page faults from disk" if happened.get("page faults from disk") else "slower at the same work"


def _compile(way: str, model: Any, spec: ModelSpec, counters: Counters) -> Callable[..., Any]:
    """Returns the compiled model, of which the counters are told what is compiled."""
    import torch

    if way == "torch.compile":
        from torch._dynamo import callback

        callback.on_compile_start(counters.note_compile)
        return torch.compile(model, backend="aot_eager" if spec.backend == "eager" else "inductor")
    from benchmarks.common.counting import use_backend
    from benchmarks.common.thunder_jit import jit, make_transform

    use_backend(spec.backend)
    transform = None if way == "thunder" else make_transform(spec.backend)
    if transform is not None:
        transform.cache.ledger.observers.append(counters.note_compile)
    compiled: Callable[..., Any] = jit(model, spec.backend, transform)
    return compiled


def _load(example: Any, workers: int, count: int) -> Iterator[Any]:
    """Yields so many inputs, which worker processes make if there are any."""
    import torch

    if not workers:
        return iter([*repeat(example, count)])
    highest, shape = int(example.max()), tuple(example.shape)

    class Tokens(torch.utils.data.Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return count

        def __getitem__(self, index: int) -> torch.Tensor:
            return torch.randint(0, highest, shape, generator=torch.Generator().manual_seed(index))

    return iter(torch.utils.data.DataLoader(Tokens(), batch_size=None, num_workers=workers))


if __name__ == "__main__":
    serve(measure)
