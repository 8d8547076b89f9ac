"""No compiler: one torch operation after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fusioncache.ir import Graph


class Eager:
    """Runs a graph through Thunder's torch executor. Works wherever torch does."""

    name = "eager"
    adder = None
    keeper = None

    def environment(self) -> Mapping[str, str]:
        """See ``Backend``."""
        import torch

        return {"backend": "eager", "versions": f"torch {torch.__version__}"}

    def layout(self, args: Sequence[Any]) -> int:
        """Any layout will do, on one GPU."""
        from fusioncache.backends.bound_symbols import gpu_of

        return gpu_of(args)

    def compile(self, graph: Graph, args: Sequence[Any]) -> Any:
        """See ``Backend``."""
        from fusioncache.backends.bound_symbols import bind, gpu_of
        from fusioncache.backends.torch_function import torch_function

        bound = bind(graph, gpu_of(args))
        function = torch_function(bound.bound_symbols, bound.inputs, bound.outputs)
        function(*args)  # what cannot run shows here
        return lambda args: function(*args)
