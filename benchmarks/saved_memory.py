"""What backward's safety costs in memory: bytes that a forward pass saves for backward, by how they were chosen.

- ``plain``: Thunder without regions saves what each backward operation reads.
- ``unsafe``: Thunder's rematerialization may save any input of a region instead of a value that it computes.
- ``safe``: fusioncache's saves no buffer, argument or result that ``plain`` does not save, as you may write into those
  between forward and backward.

Parameters, and arguments that need no gradient, are in memory anyway and count as nothing. Needs no GPU: models are
traced on the CPU, and nothing is compiled.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from itertools import product
from typing import Any
from unittest import mock

import click

from benchmarks.common.options import Words, layers_option
from benchmarks.common.processes import say
from benchmarks.common.runner import Run, benchmark, pick
from benchmarks.zoo.catalogue import names

WAYS = ("plain", "unsafe", "safe")


@benchmark(__doc__, "eager")
@click.option("--models", type=Words(names()), default=names())
@layers_option(2)
@click.option("--dtypes", type=Words(("float32", "bfloat16")), default=("float32", "bfloat16"))
def main(run: Run, models: tuple[str, ...], layers: int, dtypes: tuple[str, ...]) -> None:
    """Runs the benchmark."""
    for name, dtype in product(models, dtypes):
        saved = {way: sum(trace(name, layers, dtype, way)) for way in WAYS}
        run.keep({"model": name, "layers": layers, "dtype": dtype, **saved})
        say(f"{run.points[-1]}\n")
    columns: dict[str, Any] = {"<model": pick("model"), "<dtype": pick("dtype"), **{way: pick(way) for way in WAYS}}
    columns["safe / unsafe"] = lambda point: f"{point['safe'] / max(point['unsafe'], 1):.3f}"
    run.finish("Bytes saved for backward", columns)


def trace(name: str, layers: int, dtype: str, way: str) -> list[int]:
    """Returns the bytes that each forward program of a model's training step saves, as ``way`` has them."""
    import torch
    from thunder.extend import get_default_executors

    import fusioncache
    from benchmarks.zoo.make import make

    torch._dynamo.reset()  # behind other models Thunder alone fails with some of Dynamo's graphs
    made: list[int] = []
    workload = make(name, layers, dtype=dtype)
    executors, transforms = get_default_executors(), [_collector(made)]
    if way != "plain":
        cache = fusioncache.Cache(store=False, record=False)
        ours = fusioncache.FusionCache(cache=cache, backend="eager", jobs=0, programs=False, lean="thunder")
        executors, transforms = fusioncache.executors(), [ours, *transforms]
    with _choosing(way):
        workload.loss(workload.compile(executors, transforms)(*workload.inputs)).backward()
    return made


def measure(trace: Any) -> int:
    """Returns the bytes that a forward trace saves, without what is there anyway."""
    from fusioncache.transform.rematerialization import find_parameters
    from fusioncache.transform.rewrite import find_saved

    given = {proxy.name for proxy in trace.args if hasattr(proxy, "name") and not proxy.requires_grad}
    saved = {proxy.name: proxy for proxy in find_saved(trace)}
    return sum(saved[name].numel * saved[name].dtype.bytes for name in saved.keys() - given - find_parameters())


def _collector(made: list[int]) -> Any:
    from thunder.core.trace import TraceTag
    from thunder.core.transform_common import Transform

    class Collector(Transform):
        """Measures forward traces."""

        def transform_trace_post_optimization(self, trace: Any, **options: Any) -> Any:
            """Thunder's hook."""
            if TraceTag.AUGMENTED_FORWARD in trace.tags:
                made.append(measure(trace))
            return trace

    return Collector()


def _choosing(way: str) -> AbstractContextManager[object]:
    """Gives fusioncache's executor Thunder's own rematerialization for the unsafe way."""
    from thunder.core import rematerialization

    from fusioncache.transform import executor

    if way != "unsafe":
        return nullcontext()
    return mock.patch.object(executor, "rematerialize", rematerialization.rematerialize)


if __name__ == "__main__":
    main()
