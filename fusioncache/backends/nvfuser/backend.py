"""nvFuser, through Thunder's translators."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache, lru_cache
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from fusioncache.backends.api import Backend, Compiled, Description, Run, Sum
from fusioncache.backends.nvfuser.compiler import CompiledDefinition
from fusioncache.backends.nvfuser.one_launch import one_launch
from fusioncache.backends.torch_settings import settings_text, variables, versions_text
from fusioncache.ir import AS_WRITTEN, Arithmetic, Graph, NumberType, TensorType
from fusioncache.ir.key_text import write_values
from fusioncache.ir.request import Option

_VARIABLES = ("NVFUSER_", "PYTORCH_NVFUSER_")
"""What the names of nvFuser's variables begin with."""
_ELSEWHERE = ("NVFUSER_MASTER_", "NVFUSER_DUMP", "PYTORCH_NVFUSER_DUMP")
"""Those of them that say what is printed, and where other processes are."""

SEEN_WORKING = "torch 2.10 with nvfuser-cu128-torch210==0.2.36.dev20260301 and lightning-thunder 0.2.6"


class NvFuser(Backend):
    """Compiles a graph with nvFuser.

    Args:
        enable: nvFuser options to switch on, as in ``NVFUSER_ENABLE``.
        disable: nvFuser options to switch off, as in ``NVFUSER_DISABLE``.
        fold: see ``Backend``.

    Raises:
        ValueError: if nvFuser does not work here, or ``fold`` is unknown.

    Attributes:
        switches: the nvFuser options that are on, and those that are off.
    """

    name = "nvfuser"
    title = "nvFuser"
    source_hint = (
        "To see nvFuser's CUDA: fusioncache show {name} --repro > repro.py && "
        "NVFUSER_DUMP=cuda_kernel python repro.py --executor nvfuser"
    )

    def __init__(self, enable: Sequence[str] = (), disable: Sequence[str] = (), *, fold: str = "auto"):
        super().__init__(fold=fold)
        problem = nvfuser_problem()
        if problem:
            raise ValueError(f"backend 'nvfuser' does not work here: {problem}")
        self.switches = tuple(enable), tuple(disable)
        self._one_launch = one_launch(fold)

    @classmethod
    def problem(cls, device: str) -> str | None:
        """See ``Backend``."""
        return nvfuser_problem() if device == "cuda" else "nvFuser makes kernels for CUDA devices only"

    def options(self) -> Mapping[str, Option]:
        """See ``Backend``. How chains are summed is left out: artifacts are the same with each way."""
        enable, disable = self.switches
        return {"enable": enable, "disable": disable}

    def environment(self) -> Mapping[str, str]:
        """See ``Backend``."""
        import nvfuser_direct

        # ``fold`` is none of the options: what nvFuser compiles is the same with each, and so is every bit of a sum.
        enable, disable = map(sorted, self.switches)
        options = [("enable", " ".join(enable)), ("disable", " ".join(disable))]
        return {
            "backend": "nvfuser",
            "versions": versions_text(("nvfuser", nvfuser_direct.version())),
            "options": write_values(options),
            "architecture": _architecture(),
            "settings": settings_text(*variables(_VARIABLES, (), _ELSEWHERE)),
        }

    def artifact_environment(self) -> Mapping[str, str]:
        """See ``Backend``."""
        return self._persistence().environment()

    def layout(self, args: Sequence[Any]) -> Hashable:
        """Returns contiguity and stride order of each tensor: a definition is written for these."""
        return descriptors(args)

    def arithmetic(self, device: str) -> Arithmetic:
        """See ``Backend``. nvFuser casts where asked, and contracts each product that is added in the same kernel."""
        return AS_WRITTEN

    def compile(self, graph: Graph, args: Sequence[Any]) -> Run:
        """See ``Backend``."""
        return self.compiled(graph, args).run

    def persist(self, graph: Graph, args: Sequence[Any]) -> Compiled:
        """See ``Backend``."""
        return self._persistence().compile(graph, args)

    def load(self, artifacts: Mapping[str, bytes], graph: Graph, args: Sequence[Any]) -> Run:
        """See ``Backend``.

        Raises:
            ValueError: if the artifacts are damaged, or for other arguments.
        """
        return self._persistence().load(artifacts, graph, args)

    def sum_chain(self, dtype: str, head: Any, terms: Sequence[Any], compiled: Callable[[float], None]) -> Sum | None:
        """See ``Backend``."""
        return self._one_launch(dtype, head, terms, compiled) if self._one_launch else None

    @classmethod
    def describe(cls, artifacts: Mapping[str, bytes]) -> Description:
        """See ``Backend``."""
        from fusioncache.backends.nvfuser.persistence import describe

        return describe(artifacts)

    @classmethod
    def definition(cls, graph: Graph, args: Sequence[Any] | None = None) -> str:
        """See ``Backend``. The text is Python, and one for the CPU is taken to the GPU. Writing it needs no GPU."""
        from fusioncache.backends.nvfuser.definition import definition_text

        return definition_text(graph) if args is None else repr(define(graph, descriptors(args)))

    def _persistence(self) -> Any:
        from fusioncache.backends.nvfuser.persistence import NvFuserKeeper

        return NvFuserKeeper(self)

    def compiled(self, graph: Graph, args: Sequence[Any], enable: Sequence[str] = ()) -> CompiledDefinition:
        """What ``compile`` makes, with what it is made of.

        Args:
            graph: as for ``compile``.
            args: as for ``compile``.
            enable: options that are on while this compiles, and not when it runs.
        """
        from fusioncache.backends.bound_symbols import has_fixed_gpu

        definition = define(graph, descriptors(args))
        on, off = map(list, self.switches)
        options = {"_enable_options": on, "_disable_options": off}
        device = definition._get_device_index(definition._selected_device) if has_fixed_gpu(graph) else None
        now = {**options, "_enable_options": [*on, *enable]}
        definition.execute(list(args), device=device, **now)  # compiles
        execute = definition.fec.execute

        def run(args: Sequence[Any]) -> Any:
            return execute(args, device=device, **options)

        return CompiledDefinition(run, definition, device)


def define(graph: Graph, layouts: Sequence[Any]) -> Any:
    """The graph as an nvFuser ``FusionDefinition``. Needs no GPU.

    Args:
        graph: without parameters.
        layouts: a descriptor for each input: contiguity and stride order of a tensor, None for a number.
    """
    from fusioncache.backends.bound_symbols import bind

    bound = bind(graph)
    translators = nvfuser_executor()
    return translators.create_fd(bound.bound_symbols, layouts, list(bound.inputs), list(bound.outputs))


def descriptors(args: Sequence[Any]) -> tuple:
    """What ``define`` must know of the layout of tensors and numbers."""
    return tuple(describe_tensor(tuple(a.shape), a.stride()) if hasattr(a, "stride") else None for a in args)


def contiguous(graph: Graph) -> tuple:
    """The descriptors of contiguous inputs with static shapes."""
    import torch

    def of(type_: TensorType | NumberType) -> Any:
        if not isinstance(type_, TensorType):
            return None
        meta = torch.empty(type_.shape, device="meta")  # type: ignore[arg-type]
        return describe_tensor(tuple(meta.shape), meta.stride())

    return tuple(of(type_) for type_ in graph.inputs)


@lru_cache(maxsize=4096)
def describe_tensor(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple:
    """Returns what Thunder tells nvFuser of the layout of an input."""
    from nvfuser_direct import compute_tensor_descriptor

    contiguity, stride_order = compute_tensor_descriptor(shape, strides)
    return tuple(contiguity), tuple(stride_order), ()


def _architecture() -> str:
    import torch

    if not torch.cuda.is_available():
        return "none"
    return " ".join(
        sorted({"sm_{}{}".format(*torch.cuda.get_device_capability(i)) for i in range(torch.cuda.device_count())})
    )


def nvfuser_problem() -> str | None:
    """Why nvFuser does not work here, and what to do; None if it does."""
    import torch

    if importlib.util.find_spec("nvfuser_direct") is None:
        return f"there is no module nvfuser_direct. Seen working: {SEEN_WORKING}"
    if not torch.cuda.is_available():
        return "there is no CUDA device"
    return _import_problem()


@cache
def _import_problem() -> str | None:
    try:
        nvfuser_executor()
    except Exception as error:
        return f"it does not import with this torch ({error}). Seen working: {SEEN_WORKING}"
    return None


def nvfuser_executor() -> ModuleType:
    """Thunder's module of translators to nvFuser, made to work with nvFuser's direct bindings.

    Thunder 0.2.6 still asks a module ``nvfuser`` for one function, and nvFuser 0.2.36 ships none of that name.
    """
    import nvfuser_direct

    if "nvfuser" not in sys.modules and importlib.util.find_spec("nvfuser") is None:
        shim = ModuleType("nvfuser", "Forwards to nvfuser_direct; put here by fusioncache.")
        shim.compute_tensor_descriptor = nvfuser_direct.compute_tensor_descriptor  # type: ignore[attr-defined]
        shim.version = nvfuser_direct.version  # type: ignore[attr-defined]
        shim.__spec__ = ModuleSpec("nvfuser", None)  # without one find_spec raises, whoever asks for this module
        sys.modules["nvfuser"] = shim
    import thunder.executors.nvfuserex_impl as executor

    return executor
