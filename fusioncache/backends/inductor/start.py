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

DYNAMO_SHARE = 0.003
"""What Thunder alone spends on a region beyond what a compile takes here, as a share of that for each operation: Dynamo
is left out here."""
AGAIN_SHARE, AGAIN_OPERATION_SHARE = 0.06, 0.003
"""What Thunder alone spends on a further equal region, as a share of a compile, and more for each operation: Dynamo and
AOTAutograd go over its operations again, and TorchInductor finds its code in its cache of graphs. The C++ compiler does
not run, which takes most of a compile of few operations. ``python -m benchmarks.saved_seconds`` measures what comes of
these shares. They are at the lower end of what was seen, so that rather too little counts as saved."""


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
    """Tells whether TorchInductor's cache on disk has any graph."""
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    directory = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or default_cache_dir()
    try:
        with os.scandir(os.path.join(directory, "fxgraph")) as found:
            return next(found, None) is not None
    except OSError:
        return False
