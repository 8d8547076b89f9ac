"""nvFuser as a backend: it compiles, persists and loads. Thunder's translators write its input."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
from collections.abc import Hashable, Mapping, Sequence
from functools import cache
from typing import Any

from fusioncache.backends.api import Backend, Compiled, Description, GraphSource, Run
from fusioncache.backends.nvfuser.definition import (
    SEEN_WORKING,
    compile_definition,
    define_for,
    definition_text,
    describe_layouts,
    nvfuser_executor,
)
from fusioncache.backends.nvfuser.recipe import CUBIN, RECIPE, SOURCE
from fusioncache.backends.torch_settings import read_variables, write_settings, write_versions
from fusioncache.ir import AS_WRITTEN, Arithmetic, GeneralInstance, Graph
from fusioncache.ir.keys import write_values
from fusioncache.ir.template import ArgumentLayouts, Option
from fusioncache.observe.record.observations import ThunderCost

LEAST_MEMORY = 2 << 30
"""The least free memory of a GPU, in bytes, for which a process that only compiles may use it."""
_VARIABLES = ("NVFUSER_", "PYTORCH_NVFUSER_")
"""Prefixes of nvFuser's environment variables."""
_IGNORED_VARIABLES = ("NVFUSER_MASTER_", "NVFUSER_DUMP", "PYTORCH_NVFUSER_DUMP")
"""Prefixes of those that only say what is printed, and where other processes are."""
_DESCRIBED = ("function", "cubin", "grid", "block", "shared")
"""The fields of a launch that are shown to people."""
_REJECTS = ("INTERNAL ASSERT FAILED", "NVF_ERROR", "NVRTC compile error")
"""Texts in nvFuser's errors for a graph that it cannot compile."""
_OF_CUDA = re.compile(r"CUDA[ _]ERROR|CUDA error|out of memory|OutOfMemory", re.IGNORECASE)
"""Matches nvFuser's errors for a failed CUDA call."""
_CAUSE_PREFIXES = ("Error from segmentation group", "Expected ")
"""How lines with the cause of an error begin, the most specific first."""
_ADDRESS = re.compile(r"Error from segmentation group \d+: | tv: .*")
_MOST_LETTERS = 200


class NvFuser(Backend):
    """Compiles a graph with nvFuser.

    Args:
        enable: nvFuser options to switch on, as in ``NVFUSER_ENABLE``.
        disable: nvFuser options to switch off, as in ``NVFUSER_DISABLE``.

    Raises:
        ValueError: if nvFuser does not work here.

    Attributes:
        switches: the nvFuser options that are on, and those that are off.
    """

    name = "nvfuser"
    title = "nvFuser"
    generalizes = True
    derives_sizes = True
    lays_out_as_torch = False
    source_hint = (
        "To see nvFuser's CUDA: fusioncache show {name} --repro > repro.py && "
        "NVFUSER_DUMP=cuda_kernel python repro.py --executor nvfuser"
    )

    def __init__(self, enable: Sequence[str] = (), disable: Sequence[str] = ()):
        problem = nvfuser_problem()
        if problem:
            raise ValueError(f"backend 'nvfuser' does not work here: {problem}")
        self.switches = tuple(enable), tuple(disable)

    @classmethod
    def problem(cls, device: str) -> str | None:
        """See ``Backend``."""
        return nvfuser_problem() if device == "cuda" else "nvFuser makes kernels for CUDA devices only"

    def options(self) -> Mapping[str, Option]:
        """See ``Backend``."""
        enable, disable = self.switches
        return {"enable": enable, "disable": disable}

    def environment(self) -> Mapping[str, str]:
        """See ``Backend``."""
        import nvfuser_direct

        # ``fold`` is not an option here: nvFuser compiles the same for each value, and every bit of a sum is the same.
        enable, disable = (" ".join(sorted(options)) for options in self.switches)
        return {
            "backend": "nvfuser",
            "versions": write_versions(("nvfuser", nvfuser_direct.version())),
            "options": write_values([("enable", enable), ("disable", disable)]),
            "architecture": _architecture(),
            "settings": write_settings(*read_variables(_VARIABLES, (), _IGNORED_VARIABLES)),
        }

    def artifact_environment(self) -> Mapping[str, str] | None:
        """See ``Backend``."""
        from fusioncache.backends.nvfuser import persistence

        return persistence.artifact_environment()

    def find_obstacle(self, graph: Graph) -> str | None:
        """See ``Backend``."""
        from fusioncache.backends.nvfuser import persistence

        return super().find_obstacle(graph) or persistence.find_obstacle(graph)

    @classmethod
    def prepare(cls) -> None:
        """See ``Backend``."""
        from fusioncache.backends.nvfuser.translators import import_translators

        import_translators()
        importlib.import_module("fusioncache.backends.nvfuser.persistence")

    @classmethod
    def open_device(cls, number: int | None) -> None:
        """See ``Backend``."""
        import torch

        if number is not None:
            torch.cuda.set_device(number)
        free, _ = torch.cuda.mem_get_info()
        if free < LEAST_MEMORY:
            raise ValueError(f"{free >> 20} MiB of the GPU are free, and a compiler needs {LEAST_MEMORY >> 20}")

    def start(self, device: str) -> None:
        """See ``Backend``. Compiles a negation, because nvFuser and NVRTC initialize at their first compile."""
        import torch

        if torch.cuda.is_current_stream_capturing():
            return
        from nvfuser_direct import DataType, FusionDefinition

        with FusionDefinition() as definition:
            x = definition.define_tensor(shape=[-1], contiguity=[True], dtype=DataType.Float, is_cpu=False)
            definition.add_output(definition.ops.neg(x))
        definition.execute([torch.ones(2, device="cuda")])

    def estimate_cost(self, seconds: float, operations: int, *, loaded: bool) -> ThunderCost:
        """See ``Backend``. nvFuser compiles an equal region again, unless this Thunder caches definitions."""
        return ThunderCost(seconds, 0.0 if hasattr(nvfuser_executor().create_fd, "num_fusions") else seconds)

    def layout(self, layouts: ArgumentLayouts) -> Hashable:
        """Returns contiguity and stride order of each tensor: a definition is written for exactly these."""
        return describe_layouts(layouts)

    def arithmetic(self, device: str) -> Arithmetic:
        """See ``Backend``. nvFuser casts where the graph does, and contracts each product with an add in its kernel."""
        return AS_WRITTEN

    def compile(self, graph: Graph, args: Sequence[Any]) -> Run:
        """See ``Backend``."""
        return compile_definition(define_for(graph, args), graph, args, self.switches).keep_if_captured()

    @classmethod
    def find_rejection(cls, error: Exception) -> str | None:
        """See ``Backend``. nvFuser's checks and NVRTC reject a graph; errors of CUDA depend on the machine's state."""
        text = str(error)
        if not isinstance(error, RuntimeError) or not any(sign in text for sign in _REJECTS) or _OF_CUDA.search(text):
            return None
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        said = next((line for start in _CAUSE_PREFIXES for line in lines if line.startswith(start)), lines[0])
        return _ADDRESS.sub("", said)[:_MOST_LETTERS]

    def persist_size(self, as_general: GeneralInstance, region: Graph, args: Sequence[Any]) -> Compiled[Run]:
        """See ``Backend``. nvFuser finds or compiles the kernels for a size, and its launches are stored."""
        from fusioncache.backends.nvfuser.general import persist_size

        return persist_size(as_general, region, args, self)

    def persist(self, graph: Graph, args: Sequence[Any]) -> Compiled[Run]:
        """See ``Backend``."""
        from fusioncache.backends.nvfuser import persistence

        return persistence.persist(graph, args, self.switches)

    def load(self, artifacts: Mapping[str, bytes], graph: Graph, args: Sequence[Any]) -> Run:
        """See ``Backend``."""
        from fusioncache.backends.nvfuser import persistence

        return persistence.load(artifacts, graph, args, self.compile)

    @classmethod
    def describe(cls, artifacts: Mapping[str, bytes]) -> Description:
        """See ``Backend``. An executable that only makes views has neither kernels nor source."""
        sources = (
            (GraphSource(SOURCE, "cuda", artifacts[SOURCE].decode(errors="replace")),) if SOURCE in artifacts else ()
        )
        steps = json.loads(artifacts[RECIPE])["steps"] if RECIPE in artifacts else []
        launches = tuple({name: step[name] for name in _DESCRIBED} for step in steps if "function" in step)
        return Description(sources, launches, not sources and any(name.endswith(CUBIN) for name in artifacts))

    @classmethod
    def definition(cls, graph: Graph, args: Sequence[Any] | None = None) -> str:
        """See ``Backend``. The text is Python. A graph for the CPU is moved to the GPU. Writing it needs no GPU."""
        return definition_text(graph) if args is None else repr(define_for(graph, args))


def nvfuser_problem() -> str | None:
    """Returns why nvFuser does not work here, and what to do; None if it does."""
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


def _architecture() -> str:
    import torch

    capabilities = map(torch.cuda.get_device_capability, range(torch.cuda.device_count()))
    return " ".join(sorted({f"sm_{major}{minor}" for major, minor in capabilities})) or "none"
