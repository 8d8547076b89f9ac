"""What is measured, as the parent process and its workers exchange it. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

WAYS: Mapping[str, str] = MappingProxyType(
    {
        "thunder": "Thunder without fusioncache",
        "own prologue": "fusioncache, with Thunder's prologue as it is",
        "own calls": "fusioncache, with Thunder's functions around its programs, and in these, as they are",
        "fusioncache": "fusioncache",
        "torch.compile": "torch.compile, with TorchInductor; with --backend eager, with AOTAutograd alone",
        "graphs": "fusioncache, with graphs=True",
        "thunder graphs": "fusioncache, and Thunder's CUDAGraphTransform",
        "reduce-overhead": "torch.compile with mode='reduce-overhead'",
    }
)
"""What takes steps."""

GPU_WAYS = frozenset({"graphs", "thunder graphs", "reduce-overhead"})
"""Those that need a GPU. Elsewhere they are left out."""
