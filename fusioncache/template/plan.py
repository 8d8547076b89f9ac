"""How a template with residual chains is compiled for a given number of terms: inline, or by folds."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

FOLD_WIDTHS = (8, 4, 2, 1)
"""How many terms one fold adds. Few, so that they are soon all compiled: chains of up to 8 terms use every one."""

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


def choose_plan(arities: Arities, wanted: Iterable[Arities]) -> Plan:
    """The plan for one region.

    A model without recompute has one or two short residual adds in a region and asks for the same few arities in every
    layer: these are inlined, and its kernels are the ones it would have had. Under recompute the arities grow with the
    depth: then the core is compiled once, however many there are.

    Args:
        arities: the number of terms of each chain of the region.
        wanted: the arities of all regions of the trace that have this template.
    """
    few = len(set(wanted)) <= INLINE_ARITIES
    short = all(arity <= INLINE_TERMS for arity in arities)
    return Plan.INLINE if few and short else Plan.FOLD


def fold_widths(arity: int) -> tuple[int, ...]:
    """The widths of the folds that add ``arity`` terms, widest first."""
    widths: list[int] = []
    for width in FOLD_WIDTHS:
        count, arity = divmod(arity, width)
        widths += [width] * count
    return tuple(widths)
