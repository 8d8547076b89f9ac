"""Adds any number of terms to a head in one launch of a Triton kernel, which reads their addresses from a table.

The order is that of the chain, and the sum is float32, so that every bit is that of the folds. Importing this module
imports Triton.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import reduce
from operator import or_
from typing import Any

import torch
import triton
import triton.language as tl

from fusioncache.process import forks

BLOCK, AHEAD = 1024, 4
"""The elements of a block, and how many terms a thread may load before it adds the first of them. The best of those
that were compared on an H200 (``results/h200/fold-widths.json``)."""

_ALIGNED = 16
"""Bytes of the widest load. Triton cannot infer the alignment of addresses from a table, so the kernel assumes it."""

_get_device, _data_ptr = torch.Tensor.get_device, torch.Tensor.data_ptr
_compiling = forks.lock()
_compiled: set[Any] = set()


def prepare(head: torch.Tensor, terms: Sequence[torch.Tensor], compiled: Callable[[float], None]) -> None:
    """Compiles the kernel for tensors like these, if needed, and then calls ``compiled`` with the seconds."""
    # Triton specializes on dtypes, and on whether 16 divides the elements. Each device loads a kernel of its own.
    kernel = head.device, head.dtype, terms[0].dtype, head.numel() % 16 == 0
    with _compiling:
        start = time.perf_counter()
        if kernel not in _compiled and add(head, terms) is not None:
            compiled(time.perf_counter() - start)
            _compiled.add(kernel)


def add(head: torch.Tensor, terms: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Returns ``head + term + term + ...`` in float32, computed on the current stream.

    Args:
        head: a tensor on a CUDA device, contiguous, float32, bfloat16 or float16.
        terms: at least one; contiguous, of the head's shape, all of one dtype.

    Returns:
        The sum; None where it cannot be computed this time: if the tensors are on several devices or not aligned, or
        during the capture of a CUDA graph. Its replay would copy the table from memory that was reused by then.
    """
    tensors = (head, *terms)
    if reduce(or_, map(_data_ptr, tensors)) % _ALIGNED or len(set(map(_get_device, tensors))) > 1:
        return None
    with torch.cuda.device(head.device):
        if torch.cuda.is_current_stream_capturing():
            return None
        return launch(head, terms)


def launch(head: torch.Tensor, terms: Sequence[torch.Tensor], block: int = BLOCK, ahead: int = AHEAD) -> torch.Tensor:
    """Returns ``head + term + term + ...`` in float32, of aligned tensors on one device, which must be the current one.

    The copy of the table does not wait for work on other streams. Every table has memory of its own, so that calls may
    overlap. Torch reuses the pinned memory only when the copy from it is done, and the table's memory only for later
    work on this stream, behind the kernel.

    ``block`` is a power of 2: see ``BLOCK`` and ``AHEAD``.
    """
    addresses = torch.tensor(list(map(_data_ptr, terms)), dtype=torch.int64, pin_memory=head.is_cuda)
    total = torch.empty(head.shape, dtype=torch.float32, device=head.device)
    _add[(triton.cdiv(total.numel(), block),)](
        head,
        addresses.to(head.device, non_blocking=True),
        total,
        total.numel(),
        len(terms),
        TERM=_TYPES[terms[0].dtype],
        ALIGNED=_ALIGNED,
        BLOCK=block,
        AHEAD=ahead,
    )
    return total


# The number of terms is not a constant of the kernel, and 1 and multiples of 16 get no specialization.
@triton.jit(do_not_specialize=["terms"])
def _add(
    head: tl.tensor,
    table: tl.tensor,
    out: tl.tensor,
    count: tl.tensor,
    terms: tl.tensor,
    TERM: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
    AHEAD: tl.constexpr,
) -> None:
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < count
    total = tl.load(head + offsets, mask=inside).to(tl.float32)
    whole = terms // AHEAD * AHEAD
    for first in range(0, whole, AHEAD):
        for index in tl.static_range(AHEAD):
            address = tl.load(table + first + index).to(tl.pointer_type(TERM))
            term = tl.load(tl.multiple_of(address, ALIGNED) + offsets, mask=inside)
            total += term.to(tl.float32)
    # The remaining terms are loaded all at once as well. A missing term must not be added as 0: -0.0 + 0.0 is 0.0.
    for index in tl.static_range(AHEAD - 1):
        there = whole + index < terms
        address = tl.load(table + whole + index, mask=there, other=0).to(tl.pointer_type(TERM))
        term = tl.load(tl.multiple_of(address, ALIGNED) + offsets, mask=inside & there)
        total = tl.where(there, total + term.to(tl.float32), total)
    tl.store(out + offsets, total, mask=inside)


_TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
