"""The one-time start of TorchInductor, and estimates of the seconds that Thunder alone spends on a region."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from typing import Any

from fusioncache.observe.record.savings import Alone

MODULES = (
    *("torch._inductor.compile_fx", "torch._dynamo.convert_frame", "torch.fx.experimental.proxy_tensor"),
    "fusioncache.backends.inductor.persistence",
)
"""The modules that a compile imports."""

DYNAMO_SHARE = 0.003
"""The seconds of Dynamo, which Thunder alone runs on a region, for each operation, as a share of a compile here."""
AGAIN_SHARE, AGAIN_OPERATION_SHARE = 0.06, 0.003
"""The seconds that Thunder alone spends on a further equal region, as a share of a compile, and those per operation:
Dynamo and AOTAutograd go over its operations again, and TorchInductor finds its code in its cache of graphs. The C++
compiler, which takes most of a compile of few operations, does not run. ``python -m benchmarks.saved_seconds`` measures
the result. The shares are at the lower end of what was seen, so that rather too little counts as saved."""
HEADER_SECONDS, KILOBYTE_SECONDS, ALONE_SECONDS = 1.4, 0.012, 0.6
"""The seconds of a run of the C++ compiler for several kernels, without their sources; those for a kilobyte of sources;
those of a run for one kernel alone, with headers that were compiled before. ``estimate_alone`` scales them by a run
that was timed."""


def start(device: str, *, joined: bool) -> None:
    """Imports TorchInductor, probes the CPU's vector instructions, and compiles a function that belongs to no region.

    The function is compiled for the sake of the tables that TorchInductor makes when it is first used, and of the
    headers that it compiles before its first kernel. A joined compile uses no such headers: then no kernel is compiled.
    On a GPU the function has no kernel, as none may be launched while a graph is captured.
    """
    for name in MODULES:
        importlib.import_module(name)
    if device != "cpu":
        importlib.import_module("torch._inductor.codegen.triton")
        _compile(_transpose)
    elif joined:
        from fusioncache.backends.inductor.joined_kernels import collect_kernels

        with collect_kernels():
            _compile(_subtract)
    else:
        _compile(_subtract)


def estimate_alone(seconds: float, sources: Sequence[Sequence[str]]) -> list[float]:
    """Returns estimates of the C++ compiler's seconds for each graph alone, from those of its run for all of them.

    Alone, headers are compiled before: see ``_MOST_ALONE`` in ``backend.py``. A source that comes again is not compiled
    again, because TorchInductor finds its library.

    Args:
        seconds: of the run for all graphs.
        sources: of the kernels of each graph.
    """
    different = {source for graph in sources for source in graph}
    scale = seconds / (HEADER_SECONDS + KILOBYTE_SECONDS * sum(map(len, different)) / 1000)
    estimates = []
    for graph in sources:
        new = different.intersection(graph)
        different -= new
        estimates.append(scale * sum(ALONE_SECONDS + KILOBYTE_SECONDS * len(source) / 1000 for source in new))
    return estimates


def _compile(function: Callable[[Any], Any]) -> None:
    """Compiles a function in the very surroundings in which a region is compiled."""
    import torch

    from fusioncache.backends.inductor.package import compile_graph, fake
    from fusioncache.backends.inductor.persistence import find_mode

    if find_mode() is None:
        compile_graph(function, fake([torch.empty(2, 3, device="cpu")]), None)


def _subtract(x: Any) -> Any:
    return [x - 3]


def _transpose(x: Any) -> Any:
    return [x.t()]


def compile_alone(seconds: float, operations: int, *, loaded: bool) -> Alone:
    """Returns what Thunder alone spends on the regions of an executable that took these seconds to compile.

    Where TorchInductor's cache on disk has graphs, it is taken to have those of an executable that was loaded, too:
    rather too little counts as saved than too much.
    """
    from torch._inductor import config

    first = seconds * (1 + DYNAMO_SHARE * operations)
    if not config.fx_graph_cache or config.force_disable_caches:
        return Alone(first, first)
    again = seconds * min(AGAIN_SHARE + AGAIN_OPERATION_SHARE * operations, 1.0)
    return Alone(again if loaded and _has_graphs() else first, again)


def _has_graphs() -> bool:
    """True if TorchInductor's cache on disk has any graph."""
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    directory = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or default_cache_dir()
    try:
        with os.scandir(os.path.join(directory, "fxgraph")) as found:
            return next(found, None) is not None
    except OSError:
        return False
