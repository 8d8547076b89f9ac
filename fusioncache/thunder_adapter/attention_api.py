"""The names of Thunder that the executor of attention by cuDNN is written with."""

from __future__ import annotations

from thunder.core.transforms import get_grad, put_grads

__all__ = [
    "get_grad",
    "put_grads",
]
