"""TorchInductor, so that every machine can run the project."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fusioncache.ir import Graph

if TYPE_CHECKING:
    from fusioncache.backends.inductor_package import InductorKeeper


class Inductor:
    """Compiles a graph with ``torch.compile``.

    Args:
        mode: as for ``torch.compile``.
    """

    name = "inductor"
    adder = None

    def __init__(self, mode: str | None = None):
        self._mode = mode

    @property
    def keeper(self) -> InductorKeeper:
        """See ``Backend``."""
        from fusioncache.backends.inductor_package import InductorKeeper

        return InductorKeeper(self)

    def environment(self) -> Mapping[str, str]:
        """See ``Backend``."""
        import torch

        architecture = torch.backends.cpu.get_cpu_capability()
        if torch.cuda.is_available():
            architecture += " " + " ".join(torch.cuda.get_arch_list())
        return {
            "backend": "inductor",
            "versions": f"torch {torch.__version__}",
            "options": f"mode {self._mode}",
            "architecture": architecture,
        }

    def layout(self, args: Sequence[Any]) -> Hashable:
        """Sizes and strides: code is generated for these."""
        return tuple((arg.shape, arg.stride()) if hasattr(arg, "stride") else None for arg in args)

    def compile(self, graph: Graph, args: Sequence[Any]) -> Callable[[Sequence[Any]], Any]:
        """See ``Backend``."""
        from fusioncache.backends.bound_symbols import bind
        from fusioncache.backends.torch_function import torch_function

        bound = bind(graph)
        function = inductor_function(torch_function(bound.bound_symbols, bound.inputs, bound.outputs), self._mode)
        function(*args)  # compiles
        return lambda args: function(*args)


def inductor_function(function: Callable[..., Any], mode: str | None = None) -> Callable[..., Any]:
    """A function of torch operations, compiled at its first call, outside autograd and autocast."""
    import torch
    from thunder.executors.torchex import no_autocast

    # The context managers stay outside: inside, torch.compile would guard on the code that all regions share.
    return torch.no_grad()(no_autocast(torch.compile(function, mode=mode, fullgraph=True)))
