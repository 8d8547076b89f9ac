"""TorchInductor as a backend, which works on every machine: it compiles, persists and loads."""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

from fusioncache.backends.api import Backend, Compiled, Description, GeneralFunction, Progress, Run
from fusioncache.backends.bound_symbols import bind, define_source, on_each_gpu, torch_function
from fusioncache.backends.inductor import artifacts
from fusioncache.backends.inductor.artifacts import Package, describe, fake
from fusioncache.backends.inductor.carried_region import TensorRegion, numbers_to_tensors, without_numbers
from fusioncache.backends.inductor.environment import artifact_environment, inductor_settings
from fusioncache.backends.inductor.joined_kernels import collect_kernels
from fusioncache.backends.inductor.persistence import (
    Code,
    find_mode,
    find_obstacle,
    fit,
    guard_plain,
    layout_of_any_size,
    load,
    package_together,
    persist,
)
from fusioncache.backends.torch_settings import write_settings, write_versions
from fusioncache.ir import Arithmetic, Declined, GeneralRegion, Graph, Scope, Value
from fusioncache.ir.keys import write_values
from fusioncache.ir.ops import writes_in_place
from fusioncache.ir.template import ArgumentLayouts, Option, layouts_of
from fusioncache.observe.record.observations import ThunderCost
from fusioncache.process.warning import log_errors

MODULES = (
    "torch._inductor.compile_fx",
    "torch._dynamo.convert_frame",
    "torch.fx.experimental.proxy_tensor",
)
"""The modules that compiling imports."""

DYNAMO_SHARE = 0.003
"""The seconds that Dynamo takes per operation, as a share of a compile here. Only plain Thunder runs Dynamo on a
region."""
AGAIN_SHARE, AGAIN_OPERATION_SHARE = 0.06, 0.003
"""The seconds that plain Thunder spends on a further equal region, as a share of a compile, and those per operation.

Dynamo and AOTAutograd process its operations again, and TorchInductor finds its code in its cache of graphs. The C++
compiler, which takes most of a compile of few operations, does not run. ``python -m benchmarks.saved_seconds`` measures
the result. The shares are at the lower end of the measured ones, so that too little rather than too much counts as
saved."""


def _has_graphs() -> bool:
    """True if TorchInductor's cache on disk has any graph."""
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    directory = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or default_cache_dir()
    try:
        with os.scandir(os.path.join(directory, "fxgraph")) as found:
            return next(found, None) is not None
    except OSError:
        return False


_COMPILER = "g++"
"""The C++ compiler that TorchInductor runs if the variable ``CXX`` is not set."""


class Inductor(Backend):
    """Compiles a graph with ``torch.compile``.

    Args:
        mode: as for ``torch.compile``.
    """

    name = "inductor"
    title = "TorchInductor"
    generalizes = True
    source_hint = (
        "To see TorchInductor's C++: fusioncache show {name} --repro > repro.py && "
        "TORCH_LOGS=output_code python repro.py --executor inductor"
    )

    def __init__(self, mode: str | None = None):
        self._mode = mode
        # Only in the body of ``compiled_together``: the settings of the compilation are still the same there.
        self._together: dict[tuple[Graph, ArgumentLayouts], Package] = {}

    @classmethod
    def problem(cls, device: str) -> str | None:
        """See ``Backend``."""
        compiler = os.environ.get("CXX", _COMPILER)
        if device == "cuda" or shutil.which(compiler):
            return None
        named = f" {compiler!r}, which CXX names" if "CXX" in os.environ else ""
        return f"there is no C++ compiler{named}: install one (apt install g++), or set CXX to one"

    def options(self) -> Mapping[str, Option]:
        """See ``Backend``."""
        return {} if self._mode is None else {"mode": self._mode}

    def environment(self) -> Mapping[str, str]:
        """See ``Backend``."""
        import torch

        architecture = torch.backends.cpu.get_cpu_capability()
        if torch.cuda.is_available():
            architecture += " " + " ".join(torch.cuda.get_arch_list())
        return {
            "backend": "inductor",
            "versions": write_versions(),
            "options": write_values([("mode", self._mode)]),
            "architecture": architecture,
            "settings": write_settings(*inductor_settings()),
        }

    def artifact_environment(self) -> Mapping[str, str]:
        """See ``Backend``."""
        return artifact_environment()

    def find_obstacle(self, graph: Graph) -> str | None:
        """See ``Backend``."""
        return find_obstacle(graph)

    @classmethod
    def prepare(cls) -> None:
        """See ``Backend``."""
        for name in ("thunder", "torch._inductor.compile_fx"):
            importlib.import_module(name)

    def start(self, device: str) -> None:
        """Imports TorchInductor, probes the CPU's vector instructions, and compiles a function that is not of a region.

        The function is compiled because TorchInductor builds tables at its first use. Its kernel is not compiled. On a
        GPU the function has no kernel, because none may be launched while a graph is captured.
        """
        is_cpu = device == "cpu"
        for name in MODULES if is_cpu else (*MODULES, "torch._inductor.codegen.triton"):
            importlib.import_module(name)
        if find_mode() is None:
            with collect_kernels() if is_cpu else nullcontext():
                like = fake([("float32", (2, 3), (3, 1))])
                artifacts.compile_graph(lambda x: [x - 3 if is_cpu else x.t()], like, None)

    def estimate_cost(self, seconds: float, operations: int, *, loaded: bool) -> ThunderCost:
        """See ``Backend``.

        If TorchInductor's cache on disk contains any graphs, it is assumed to contain those of a loaded executable,
        too: too little rather than too much counts as saved.
        """
        from torch._inductor import config

        first = seconds * (1 + DYNAMO_SHARE * operations)
        if not config.fx_graph_cache or config.force_disable_caches:
            return ThunderCost(first, first)
        again = seconds * min(AGAIN_SHARE + AGAIN_OPERATION_SHARE * operations, 1.0)
        return ThunderCost(again if loaded and _has_graphs() else first, again)

    def layout(self, layouts: ArgumentLayouts) -> Hashable:
        """Returns sizes and strides: code is generated for exactly these."""
        return layouts

    def arithmetic(self, device: str) -> Arithmetic:
        """See ``Backend``. TorchInductor computes bfloat16 and float16 in float32, and rounds where a value is stored.

        It splits a graph into one or several kernels. That determines which values are stored, and on a GPU which
        products are contracted. Its C++ is compiled without contraction, unless the user enables it.
        """
        from torch._inductor import config

        never_contracts = device == "cpu" and config.cpp.enable_floating_point_contract_flag == "off"
        return Arithmetic(rounds=False, contracts_alike=never_contracts)

    def compile(self, graph: Graph, args: Sequence[Any]) -> Run:
        """See ``Backend``."""

        def make(gpu: int) -> Callable[..., Any]:
            return inductor_function(torch_function(bind(graph, gpu)), self._mode, in_place=writes_in_place(graph))

        run = on_each_gpu(graph, make)
        run(args)  # compiles
        return run

    def general_layout(self, layouts: ArgumentLayouts) -> Hashable:
        """See ``Backend``."""
        return layout_of_any_size(layouts)

    def find_least_size(self) -> int:
        """See ``Backend``. TorchInductor unrolls shorter sums, and calls scalar functions in loops of fewer than 4."""
        from torch._inductor import config

        return max(config.unroll_reductions_threshold, 4)

    def persist_general(
        self, general: GeneralRegion, args: Sequence[Any], values: Sequence[Value]
    ) -> Compiled[GeneralFunction]:
        """See ``Backend``."""
        carried = numbers_to_tensors(general)
        args, values = carried.carry(args, values), carried.without_numbers(values)
        made = persist(carried, args, values, self._mode)
        if made.run is None:
            raise Declined(made.reason or "not stored", Scope.GENERAL)
        run = carried.wrap(partial(fit, made.run, partial(self._compile_source, carried)))
        return Compiled(run, made.artifacts, made.reason, made.is_permanent, alone_seconds=made.alone_seconds)

    def load_general(
        self, artifacts: Mapping[str, bytes], general: GeneralRegion, args: Sequence[Any]
    ) -> GeneralFunction:
        """See ``Backend``.

        Raises:
            ValueError: if the artifacts have another format, or are not for this region.
            OSError: if there is no room for temporary files.
        """
        carried = numbers_to_tensors(general)
        code = load(artifacts, carried, carried.carry(args, general.values[0]))
        return carried.wrap(partial(fit, code, partial(self._compile_source, carried)))

    def _compile_source(self, carried: TensorRegion, args: Sequence[Any]) -> Run:
        """Returns a function of a region for tensors of any kind. It takes the variables behind its arguments."""

        def make(gpu: int) -> Callable[..., Any]:
            return inductor_function(define_source(carried.source(gpu)), self._mode)

        return on_each_gpu(carried.general.graph, make)

    def persist(self, graph: Graph, args: Sequence[Any]) -> Compiled[Run]:
        """See ``Backend``."""
        package = self._together.pop((graph, layouts_of(args)), None) if self._together else None
        made = persist(without_numbers(graph), args, (), self._mode, package)
        run = self.compile(graph, args) if made.run is None else self._guard(made.run, graph)
        return Compiled(run, made.artifacts, made.reason, made.is_permanent, alone_seconds=made.alone_seconds)

    def _guard(self, code: Code, graph: Graph) -> Run:
        """Returns the function of a graph. It compiles the graph for arguments that the code cannot read."""
        return guard_plain(code.run, partial(self.compile, graph))

    @contextmanager
    def compiled_together(self, graphs: Sequence[tuple[Graph, Sequence[Any]]], progress: Progress) -> Iterator[None]:
        """See ``Backend``. One run of the C++ compiler compiles the kernels of all."""
        packages: dict[int, Package] = {}
        with log_errors("regions are not compiled together"):  # each is compiled alone
            packages = package_together(graphs, self._mode, progress)
        self._together = {(graphs[n][0], layouts_of(graphs[n][1])): package for n, package in packages.items()}
        try:
            yield
        finally:
            self._together = {}

    def load(self, artifacts: Mapping[str, bytes], graph: Graph, args: Sequence[Any]) -> Run:
        """See ``Backend``.

        Raises:
            ValueError: if the artifacts have another format, or are not for this graph and arguments of this layout.
            OSError: if there is no room for temporary files.
        """
        return self._guard(load(artifacts, without_numbers(graph), args), graph)

    @classmethod
    def describe(cls, artifacts: Mapping[str, bytes]) -> Description:
        """See ``Backend``."""
        return describe(artifacts)


def inductor_function(
    function: Callable[..., Any], mode: str | None = None, *, in_place: bool = False
) -> Callable[..., Any]:
    """Returns a function of torch operations that is compiled at its first call, outside autograd and autocast.

    Args:
        function: takes tensors and numbers.
        mode: as for ``torch.compile``.
        in_place: whether it writes into its arguments, so that these must not be copied.
    """
    import torch

    from fusioncache.thunder_adapter.api import no_autocast

    # The context managers are outside: inside, torch.compile would guard on the code that all regions share.
    compiled = torch.no_grad()(no_autocast(torch.compile(function, mode=mode, fullgraph=True)))
    return compiled if in_place else lambda *args: compiled(*map(_resolve_lazy_views, args))


def _resolve_lazy_views(arg: Any) -> Any:
    """Returns a tensor without a lazy negation or conjugation, which torch.compile forgets to apply."""
    return arg.resolve_conj().resolve_neg() if hasattr(arg, "resolve_neg") else arg
