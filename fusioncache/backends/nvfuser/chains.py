"""Which residual chains are summed in one launch of Triton rather than by folds. Imports Triton only for these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fusioncache.backends.api import Sum

MOST_FOLDED_TERMS = 8
"""One kernel of nvFuser adds as many as fast as Triton does, and there is no sum between kernels yet. Measured by
``benchmarks/fold_widths.py`` on an H200 (``results/h200/fold-widths.json``)."""

LEAST_TERM_BYTES = 4 * 2**20
"""Folds add smaller terms as fast, up to about 64 of them. From here on one launch takes 0.96 to 1.35 times what the
bandwidth allows, and folds take 0.97 to 1.87 times that. Measured as above."""

_SUMMED = frozenset({"torch.float32", "torch.bfloat16", "torch.float16"})


def sum_chain(fold: str, dtype: str, head: Any, terms: Sequence[Any], compiled: Callable[[float], None]) -> Sum | None:
    """Makes what sums such chains in one launch, where ``takes_one_launch`` says so: see ``Backend.sum_chain``."""
    if not takes_one_launch(fold, dtype, head, terms):
        return None
    from fusioncache.backends.nvfuser import pointer_table

    pointer_table.prepare(head, terms, compiled)
    return pointer_table.add


def takes_one_launch(fold: str, dtype: str, head: Any, terms: Sequence[Any]) -> bool:
    """Returns whether a chain with a sum of this dtype is summed in one launch, as far as its addresses allow.

    That is never with a ``fold`` of ``"nvfuser"``, whenever it can be with ``"triton"``, and where it is faster with
    ``"auto"``.
    """
    if fold == "nvfuser" or dtype.rstrip("_") != "float32" or not all(map(_can_be_read, (head, *terms))):
        return False
    like = terms[0]
    if head.shape != like.shape or any((term.shape, term.dtype) != (like.shape, like.dtype) for term in terms):
        return False
    long, large = len(terms) > MOST_FOLDED_TERMS, like.numel() * like.element_size() >= LEAST_TERM_BYTES
    return fold == "triton" or (long and large)


def _can_be_read(value: Any) -> bool:
    """Returns whether a value is a tensor that lies on a CUDA device, one element after the other."""
    return (
        hasattr(value, "is_contiguous")
        and value.is_cuda
        and value.is_contiguous()
        and value.numel() > 0
        and str(value.dtype) in _SUMMED
    )
