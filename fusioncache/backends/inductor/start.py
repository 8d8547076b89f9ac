"""What TorchInductor costs once in a process, and what Thunder alone spends on it for each region."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any

from fusioncache.record.savings import Alone

MODULES = (
    *("torch._inductor.compile_fx", "torch._dynamo.convert_frame", "torch.fx.experimental.proxy_tensor"),
    "fusioncache.backends.inductor.persistence",
)
"""What is imported to compile."""

FIRST_SHARE = 1.12
"""What Thunder alone spends on a region, as a multiple of what a compile takes here, where Dynamo is left out."""
AGAIN_SHARE = 0.2
"""The same for a further equal region: Dynamo and AOTAutograd run again, and TorchInductor finds its code in its cache
of graphs. Both were measured by ``python -m benchmarks.saved_seconds``."""


def start(device: str) -> None:
    """Imports TorchInductor, finds out what the processor can do, and compiles a function that is no region's.

    To find out what the processor can do, TorchInductor compiles a library for each set of vector instructions, and
    before its first kernel it compiles its headers. With empty cache directories that takes longer than all else. The
    function is compiled for the sake of the headers, and of the tables that TorchInductor makes when it is first asked.
    On a GPU it has no kernel, as none may be launched while a graph is captured.
    """
    for name in MODULES:
        importlib.import_module(name)
    if device == "cpu":
        from torch._inductor.cpu_vec_isa import pick_vec_isa

        pick_vec_isa()
    else:
        importlib.import_module("torch._inductor.codegen.triton")
    _compile(_subtract if device == "cpu" else _transpose)


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


def compile_alone(seconds: float, *, loaded: bool) -> Alone:
    """Returns what Thunder alone spends on the regions of an executable that took these seconds to compile.

    Where TorchInductor's cache on disk has graphs, it is taken to have those of an executable that was loaded, too:
    rather too little counts as saved than too much.
    """
    from torch._inductor import config

    if not config.fx_graph_cache or config.force_disable_caches:
        return Alone(seconds * FIRST_SHARE, seconds * FIRST_SHARE)
    again = seconds * AGAIN_SHARE
    return Alone(again if loaded and _has_graphs() else seconds * FIRST_SHARE, again)


def _has_graphs() -> bool:
    """Tells whether TorchInductor's cache on disk has any graph."""
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    directory = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or default_cache_dir()
    try:
        with os.scandir(os.path.join(directory, "fxgraph")) as found:
            return next(found, None) is not None
    except OSError:
        return False
