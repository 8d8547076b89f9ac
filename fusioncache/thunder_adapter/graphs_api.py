"""The names of Thunder that captured CUDA graphs are read and made with."""

from __future__ import annotations

from thunder.transforms.cudagraph import CUDAGraphRunner, CUDAGraphTransform

__all__ = [
    "CUDAGraphRunner",
    "CUDAGraphTransform",
]
