"""What is measured, as the parent process and its workers exchange it. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from benchmarks.common.spec import ModelSpec, count_layers

WAYS: Mapping[str, str] = MappingProxyType(
    {
        "eager": "PyTorch, with nothing compiled",
        "thunder": "Thunder without fusioncache",
        "own prologue": "fusioncache, with Thunder's prologue as it is",
        "own calls": "fusioncache, with Thunder's functions around its programs, and in these, as they are",
        "fusioncache": "fusioncache",
        "torch.compile": "torch.compile, with TorchInductor; with --backend eager, with AOTAutograd alone",
        "graphs": "fusioncache, with graphs=True",
        "cudnn": "fusioncache, with attention by cuDNN",
        "cudnn graphs": "fusioncache, with attention by cuDNN and graphs=True",
        "thunder graphs": "fusioncache, and Thunder's CUDAGraphTransform",
        "reduce-overhead": "torch.compile with mode='reduce-overhead'",
    }
)
"""What takes steps."""

GPU_WAYS = frozenset({"graphs", "cudnn", "cudnn graphs", "thunder graphs", "reduce-overhead"})
"""Those that need a GPU. Elsewhere they are left out."""

ALONE = frozenset({"own prologue", "thunder graphs"})
"""Those that take steps in a process of their own.

The first changes what all of a process does. The second is broken by what is beside it: what Thunder captures works in
cuBLAS' workspace, which torch lets go of when it captures with reduce-overhead.
"""

WIDTHS = ("narrow", "real")
MODES = ("training", "inference")


@dataclass(frozen=True, slots=True)
class StepSpec:
    """A later step of a Llama in a process of its own.

    Attributes:
        way: one of ``WAYS``.
        model: the model and the compiler. Without ``grad`` a step is a forward pass under ``torch.no_grad``.
        width: one of ``WIDTHS``: ``"real"`` is the configuration of Llama-2-7b, but for the layers.
        tokens: in one row; None for two rows of 64.
    """

    way: str
    model: ModelSpec
    width: str = "narrow"
    tokens: int | None = None

    def __str__(self) -> str:
        rows = "2 x 64" if self.tokens is None else f"1 x {self.tokens}"
        return f"{count_layers(self.model.layers)}, {rows} tokens, {self.way}"

    @property
    def mode(self) -> str:
        """One of ``MODES``."""
        return "training" if self.model.grad else "inference"

    @classmethod
    def read(cls, options: Mapping[str, Any]) -> StepSpec:
        """Reads what ``dataclasses.asdict`` wrote."""
        return cls(**{**options, "model": ModelSpec(**options["model"])})
