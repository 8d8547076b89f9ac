"""A backend without a compiler: one torch operation after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from fusioncache.backends.api import Backend, Compiled, GeneralFunction, Run
from fusioncache.backends.torch_settings import write_settings, write_versions
from fusioncache.ir import AS_WRITTEN, Arithmetic, GeneralRegion, Graph, Value
from fusioncache.ir.ops import shaping_inputs
from fusioncache.ir.template import ArgumentLayouts
from fusioncache.process.forks import LruMap

_MOST_SHAPES = 256
"""The most functions that are held for different values of the numbers that decide about shapes."""


class Eager(Backend):
    """Runs a graph through Thunder's torch executor. Works wherever torch does."""

    name = "eager"
    title = "torch"
    compiles = False
    generalizes = True

    def environment(self) -> Mapping[str, str]:
        """See ``Backend``."""
        return {"backend": "eager", "versions": write_versions(), "settings": write_settings()}

    def layout(self, layouts: ArgumentLayouts) -> None:
        """Returns None: the code runs for any layout."""
        return None

    def arithmetic(self, device: str) -> Arithmetic:
        """See ``Backend``. Each operation is a kernel of its own."""
        return AS_WRITTEN

    def compile(self, graph: Graph, args: Sequence[Any]) -> Run:
        """See ``Backend``."""
        run = run_one_by_one(graph)
        run(args)  # fails for operations that cannot run
        return run

    def persist_general(
        self, general: GeneralRegion, args: Sequence[Any], values: Sequence[Value]
    ) -> Compiled[GeneralFunction]:
        """See ``Backend``."""
        from fusioncache.backends.bound_symbols import define_source, general_torch_source, on_each_gpu, read_numbers

        run = on_each_gpu(general.graph, lambda gpu: define_source(general_torch_source(general, gpu)))
        run([*args, *read_numbers(values)])  # fails for operations that cannot run

        def fit(args: Sequence[Any], values: Sequence[Value]) -> Run:
            numbers = read_numbers(values)
            return lambda args: run([*args, *numbers])

        return Compiled(fit, None, None)


def run_one_by_one(graph: Graph) -> Run:
    """Returns a function that runs a graph operation by operation, for any layout. Runs nothing yet.

    Thunder uses the values of some inputs to decide which operations run, so each set of values has a function.

    Args:
        graph: without parameters; its operations may come from any executor.
    """
    from fusioncache.backends.bound_symbols import bind, on_each_gpu, torch_function

    def make(numbers: Sequence[tuple[int, Any]], gpu: int) -> Callable[..., Any]:
        return torch_function(bind(graph, gpu, dict(numbers)))

    shaping = shaping_inputs(graph)
    if not shaping:
        return on_each_gpu(graph, partial(make, ()))
    runs: LruMap[tuple[Any, ...], Run] = LruMap(_MOST_SHAPES)

    def run(args: Sequence[Any]) -> Sequence[Any]:
        numbers = tuple((index, args[index]) for index in shaping)
        made, _ = runs.get_or_make(numbers, lambda: on_each_gpu(graph, partial(make, numbers)))
        return made(args)

    return run
