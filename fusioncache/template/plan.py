"""The choice of how a template with residual chains is compiled for a number of terms: inline, or by folds."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from fusioncache.ir import AS_WRITTEN, Arithmetic, Const, Graph
from fusioncache.ir.arithmetic import bits_depend_on_kernel
from fusioncache.ir.ops import RESIDUAL, op_traits, writes_in_place

FOLD_WIDTHS = (32, 16, 8, 4, 2, 1)
"""How many terms one fold adds. Few, so that they are soon all compiled: chains of up to 32 terms use every one.

Of the sets of widths that ``benchmarks/fold_widths.py`` compares on an H200 (``results/h200/fold-widths.json``) the one
that comes closest to the bandwidth, whichever fold is first: on average 1.3 to 1.5 times its floor for bfloat16 and 1.1
to 1.3 times for float32, with terms of 4 MB and more. With (8, 4, 2, 1) it is 1.3 to 1.6 times and 1.2 to 1.4 times.
"""

_EXACT = frozenset({"float32", "float64", "complex64", "complex128"})

INLINE_ARITIES = 2
INLINE_TERMS = 4


class Plan(Enum):
    """How a region's residual chains are summed.

    ``INLINE``: the adds stay in the template's kernel, which is compiled for this number of terms.
    ``FOLD``: kernels of a few fixed widths sum the terms, then the template's core takes the sum as one input.
    """

    INLINE = "inline"
    FOLD = "fold"


Arities = tuple[int, ...]


def choose_plan(
    template: Graph,
    arities: Arities,
    wanted: Iterable[Arities],
    asked: Plan | None = None,
    arithmetic: Arithmetic = AS_WRITTEN,
) -> Plan:
    """Chooses the plan for one region.

    A model without recompute has one or two short residual adds in a region and asks for the same few arities in every
    layer: these are inlined, and its kernels are the ones it would have had. Under recompute the arities grow with the
    depth: then the core is compiled once, however many there are.

    Args:
        template: what the region is one of.
        arities: the number of terms of each chain of the region.
        wanted: the arities of all regions of the trace that have this template.
        asked: what the user asked for. A fold that would not keep every bit is not taken all the same.
        arithmetic: of the compiler. Where a value's bits hang on what else is in its kernel, nothing is folded.
    """
    if asked is Plan.INLINE or not arities:
        return Plan.INLINE
    few = len(set(wanted)) <= INLINE_ARITIES
    short = all(arity <= INLINE_TERMS for arity in arities)
    small = few and short and asked is None
    return (
        Plan.INLINE
        if small or not folding_is_bitwise(template) or bits_depend_on_kernel(template, arithmetic)
        else Plan.FOLD
    )


def folding_is_bitwise(template: Graph) -> bool:
    """Returns whether the fold plan keeps every bit that it must keep.

    The chain's sum always has the region's bits. But nvFuser schedules a reduction by the number of tensors that its
    kernel reads, so that one behind the chain may add up its elements in another order. In lower precisions that is
    taken: two regions of Thunder's own with different numbers of terms differ in the same way. With float32 terms the
    result is to be bitwise that of the region, and such a template is inlined. So is one that writes in place: it is
    compiled from the region as Thunder wrote it.
    """
    stored_exactly = any(
        op.name == RESIDUAL and isinstance(op.args[1], Const) and op.args[1].text.rstrip("_") in _EXACT
        for op in template.ops
    )
    if writes_in_place(template):
        return False
    return not (stored_exactly and any(op_traits(op.name).adds_up for op in template.ops))


def fold_widths(arity: int) -> tuple[int, ...]:
    """Returns the widths of the folds that add ``arity`` terms, widest first."""
    widths: list[int] = []
    for width in FOLD_WIDTHS:
        count, arity = divmod(arity, width)
        widths += [width] * count
    return tuple(widths)
