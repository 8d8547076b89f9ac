"""Generalizations: what regions with one skeleton have in common, as specific as it can be.

A region is the generalization of itself. In that of several regions a hole that holds the same value in all of them
holds this value; all other holes hold variables, two holes the same one where they hold the same value in each region.
This is the least general generalization of the lists of their values (Plotkin, "A note on inductive generalization",
1970). So neither the order of the regions matters nor in which groups they come, and one that is an instance already
changes nothing.

Sizes that are equal by chance are one variable until a region comes in which they are not. That gives another
generalization, with another key: what a variable stands for in one that there is never changes. Whether a region is an
instance is decided by its skeleton and by each hole, so that the generalization and the values are the region.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusioncache.ir import Graph, Value
from fusioncache.template.holes import read_holes
from fusioncache.template.skeleton import Skeleton, skeleton_of


@dataclass(frozen=True, slots=True)
class Variable:
    """What has a value of its own in each instance. ``number`` counts the variables as the holes come."""

    number: int


Symbol = Value | Variable


@dataclass(frozen=True, slots=True)
class Generalization:
    """All regions that have a skeleton and certain values in its holes.

    Attributes:
        skeleton: what the regions have in common beside what is in holes.
        symbols: for each hole, the value that it holds in all of them, or a variable.
    """

    skeleton: Skeleton
    symbols: tuple[Symbol, ...]

    @property
    def variables(self) -> tuple[Variable, ...]:
        """The variables, in the order of their numbers."""
        return tuple(dict.fromkeys(symbol for symbol in self.symbols if isinstance(symbol, Variable)))


def only(graph: Graph) -> Generalization:
    """Returns the generalization that has this one instance, a graph in canonical order."""
    return Generalization(skeleton_of(graph), read_holes(graph))


def generalize(generalizations: Sequence[Generalization]) -> Generalization:
    """Returns the least general generalization that has all instances of these.

    Raises:
        ValueError: if there are none, or their skeletons differ.
    """
    skeletons = {generalization.skeleton for generalization in generalizations}
    if len(skeletons) != 1:
        raise ValueError(f"{len(skeletons)} skeletons, where all regions should have one")
    variables: dict[tuple[Symbol, ...], Variable] = {}
    columns = zip(*(generalization.symbols for generalization in generalizations), strict=True)
    symbols = tuple(_join(column, variables) for column in columns)
    return Generalization(skeletons.pop(), symbols)


def _join(column: tuple[Symbol, ...], variables: dict[tuple[Symbol, ...], Variable]) -> Symbol:
    """Returns what a hole holds in which each generalization has one of these; equal columns get one variable."""
    first = column[0]
    if not isinstance(first, Variable) and all(symbol == first for symbol in column):
        return first
    return variables.setdefault(column, Variable(len(variables)))


def fit_holes(generalization: Generalization, holes: Sequence[Value]) -> tuple[Value, ...] | None:
    """Returns the value of each variable with which a generalization is a region; None if it is none of its instances.

    Args:
        generalization: what the region may be an instance of.
        holes: what is in those of the region, which has the same skeleton, as ``read_holes`` returns it.
    """
    values: dict[Variable, Value] = {}
    for symbol, value in zip(generalization.symbols, holes, strict=True):
        expected = values.setdefault(symbol, value) if isinstance(symbol, Variable) else symbol
        if expected != value:
            return None
    return tuple(values.values())
