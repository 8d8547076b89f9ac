"""What regions have in common that differ only in sizes and numbers, as a compiler is given it."""

from __future__ import annotations

from dataclasses import dataclass

from fusioncache.ir.graph import Const, Graph

Value = int | Const
"""What a variable stands for in a region: a size, or the literal of a number."""


@dataclass(frozen=True, slots=True)
class GeneralRegion:
    """A graph with variables, and the regions that it was made of.

    Attributes:
        graph: its variables are symbolic sizes, if they are sizes of inputs, and else numbers among the inputs, behind
            those of the regions.
        places: for each variable, the input and the dimension of it where it is found; None for a number.
        regions: some of those that it has as instances. No two variables have the same values in all of them.
        values: for each of these, the value of each variable.
    """

    graph: Graph
    places: tuple[tuple[int, int] | None, ...]
    regions: tuple[Graph, ...]
    values: tuple[tuple[Value, ...], ...]
