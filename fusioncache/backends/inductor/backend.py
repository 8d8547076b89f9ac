"""TorchInductor, so that every machine can run the project."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fusioncache.backends.inductor.settings import inductor_settings
from fusioncache.backends.symbols import has_effects
from fusioncache.backends.torch_settings import SETTINGS, settings_text
from fusioncache.backends.versions import versions_text
from fusioncache.ir import Arithmetic, Graph

if TYPE_CHECKING:
    from fusioncache.backends.inductor.persistence import InductorKeeper


class Inductor:
    """Compiles a graph with ``torch.compile``.

    Args:
        mode: as for ``torch.compile``.

    Attributes:
        mode: the same.
    """

    name = "inductor"
    adder = None

    def __init__(self, mode: str | None = None):
        self.mode = mode

    @property
    def keeper(self) -> InductorKeeper:
        """See ``Backend``."""
        from fusioncache.backends.inductor.persistence import InductorKeeper

        return InductorKeeper(self)

    def environment(self) -> Mapping[str, str]:
        """See ``Backend``."""
        import torch

        architecture = torch.backends.cpu.get_cpu_capability()
        if torch.cuda.is_available():
            architecture += " " + " ".join(torch.cuda.get_arch_list())
        return {
            "backend": "inductor",
            "versions": versions_text(),
            "options": f"mode {self.mode}",
            "architecture": architecture,
            SETTINGS: settings_text(*inductor_settings()),
        }

    def layout(self, args: Sequence[Any]) -> Hashable:
        """Sizes and strides: code is generated for these."""
        return tuple((arg.shape, arg.stride()) if hasattr(arg, "stride") else None for arg in args)

    def arithmetic(self, device: str) -> Arithmetic:
        """TorchInductor computes bfloat16 and float16 in float32, and rounds where a value is stored.

        It makes one kernel of a graph, or several: that decides what is stored, and on a GPU which products are
        contracted. Its C++ is compiled without contraction, unless somebody asked for it.
        """
        from torch._inductor import config

        never_contracts = device == "cpu" and config.cpp.enable_floating_point_contract_flag == "off"
        return Arithmetic(rounds=False, contracts_alike=never_contracts)

    def compile(self, graph: Graph, args: Sequence[Any]) -> Callable[[Sequence[Any]], Any]:
        """See ``Backend``."""
        from fusioncache.backends.bound_symbols import bind, on_each_gpu
        from fusioncache.backends.torch_function import torch_function

        def made(gpu: int) -> Callable[..., Any]:
            bound = bind(graph, gpu)
            function = torch_function(bound.bound_symbols, bound.inputs, bound.outputs)
            return inductor_function(function, self.mode, in_place=has_effects(graph))

        run = on_each_gpu(graph, args, made)
        run(args)  # compiles
        return run


def inductor_function(
    function: Callable[..., Any], mode: str | None = None, *, in_place: bool = False
) -> Callable[..., Any]:
    """A function of torch operations, compiled at its first call, outside autograd and autocast.

    Args:
        function: takes tensors and numbers.
        mode: as for ``torch.compile``.
        in_place: whether it writes into its arguments, so that it must be given these very ones.
    """
    import torch
    from thunder.executors.torchex import no_autocast

    # The context managers stay outside: inside, torch.compile would guard on the code that all regions share.
    compiled = torch.no_grad()(no_autocast(torch.compile(function, mode=mode, fullgraph=True)))
    return compiled if in_place else lambda *args: compiled(*map(_as_it_reads, args))


def _as_it_reads(arg: Any) -> Any:
    """A copy of a tensor that is to be negated or conjugated when it is read, which torch.compile forgets to do."""
    return arg.resolve_conj().resolve_neg() if hasattr(arg, "resolve_neg") else arg
