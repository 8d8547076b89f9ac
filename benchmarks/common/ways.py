"""The ways to compile a model that benchmarks compare. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

_STATIC = {"FUSIONCACHE_SIZES": "static"}
_WITHOUT_PROGRAMS = {"FUSIONCACHE_PROGRAMS": "0"}
_WITHOUT_SPLITTING = {
    "FUSIONCACHE_ACCELERATORS": "programs,sizes,tracing,lean steps,graphs,schedule,residual,precompile"
}
_WITHOUT_STORE = {"FUSIONCACHE_STORE": "0", "FUSIONCACHE_PROGRAMS": "0"}


@dataclass(frozen=True, slots=True)
class Way:
    """A way to run a model.

    Attributes:
        name: as in ``--ways``.
        compiler: of the model; ``"eager"`` for none.
        uses_fusioncache: whether Thunder uses fusioncache.
        options: of ``FusionCache``, in fusioncache's ways.
        environment: environment variables of the process.
        stores_code: whether it stores anything on disk for a second process.
        lru: whether Thunder's nvFuser executor uses nvFuser's ``LruFusionCache``, as in lightning-thunder#2806.
        executors: of Thunder: ``"ours"``, its default ones (``"own"``), or these and ``torch_compile_ex``.
        attention: as for ``fusioncache.executors``, in fusioncache's ways.
        dynamic: whether to compile with ``dynamic=True``.
        graphs: whether programs are captured in CUDA graphs, by fusioncache or by torch.compile.
        names_lengths: whether ``FusionCache`` gets the lengths in advance.
        pads: whether each input is padded to the next power of two, and the output cut to the original length.
        variant: of torch.compile: with Dynamo's deduplication of graphs, or with blocks as nested compile regions.
        backend: the compiler of regions, in place of the benchmark's.
    """

    name: str
    compiler: Literal["thunder.jit", "thunderfx", "torch.compile", "eager"]
    uses_fusioncache: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    stores_code: bool = False
    lru: bool = False
    executors: Literal["ours", "own", "compiling"] = "ours"
    attention: Literal["thunder", "cudnn"] = "thunder"
    dynamic: bool = False
    graphs: bool = False
    names_lengths: bool = False
    pads: bool = False
    variant: Literal["", "dedup", "nested"] = ""
    backend: str | None = None

    @property
    def exact(self) -> bool:
        """Whether it must compute the bits of Thunder with the benchmark's backend."""
        uses_thunder = self.compiler in ("thunder.jit", "thunderfx") and self.executors == "ours"
        return uses_thunder and not self.backend and self.environment != _WITHOUT_SPLITTING

    @property
    def needs_gpu(self) -> bool:
        """Whether this way needs a GPU."""
        return self.graphs or self.lru or self.attention == "cudnn" or "NVFUSER_ENABLE" in self.environment


def _share(name: str, compiler: Literal["thunder.jit", "thunderfx"] = "thunder.jit", **more: Any) -> Way:
    return Way(name, compiler, uses_fusioncache=True, stores_code=more.pop("stores_code", True), **more)


_ALL = (
    Way("eager", "eager"),
    Way("thunder", "thunder.jit"),
    Way("thunder-plain", "thunder.jit", executors="own"),
    Way("thunder-compiling", "thunder.jit", executors="compiling"),
    Way("thunder-lru", "thunder.jit", lru=True),
    Way("thunderfx", "thunderfx"),
    _share("fusioncache"),
    _share("fusioncache-eager", backend="eager"),
    _share("templates", environment=_WITHOUT_PROGRAMS),
    _share("split", environment=_WITHOUT_SPLITTING),
    _share("nothing", environment=_WITHOUT_STORE, stores_code=False),
    _share("kernel_db", environment={**_WITHOUT_STORE, "NVFUSER_ENABLE": "kernel_db"}),
    _share("own", options={"recompute": "residual"}),
    _share("fusioncache-static", environment=_STATIC),
    _share("fusioncache-named", names_lengths=True),
    _share("fusioncache-padded", environment=_STATIC, pads=True),
    _share("fusioncache-thunderfx", "thunderfx"),
    _share("fusioncache-thunderfx-dynamic", "thunderfx", dynamic=True),
    _share("own calls", options={"lean": "thunder"}),
    _share("graphs", graphs=True),
    _share("cudnn", attention="cudnn"),
    _share("cudnn graphs", attention="cudnn", graphs=True),
    Way("torch.compile", "torch.compile", stores_code=True),
    Way("torch.compile-dynamic", "torch.compile", dynamic=True, stores_code=True),
    Way("torch.compile-dedup", "torch.compile", variant="dedup", stores_code=True),
    Way("torch.compile-nested", "torch.compile", variant="nested", stores_code=True),
    Way("reduce-overhead", "torch.compile", graphs=True, stores_code=True),
)
WAYS: Mapping[str, Way] = {way.name: way for way in _ALL}


def choose_ways(names: tuple[str, ...], device: str) -> list[Way]:
    """Returns the ways of these names that a device supports."""
    return [WAYS[name] for name in names if device == "cuda" or not WAYS[name].needs_gpu]
