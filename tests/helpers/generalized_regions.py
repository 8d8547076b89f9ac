"""Matches of regions with generalizations, and instances of generalizations."""

from collections.abc import Sequence

from fusioncache.ir import Graph, Value
from fusioncache.template.generalization import Generalization, Variable, fit_holes
from fusioncache.template.skeleton import fill


def find_values(generalization: Generalization, region: Generalization) -> tuple[Value, ...] | None:
    """Returns the values of a generalization's variables for which it equals a region; None if it is no instance."""
    if generalization.skeleton != region.skeleton:
        return None
    assert not region.variables
    return fit_holes(generalization, region.symbols)


def instantiate(generalization: Generalization, values: Sequence[Value]) -> Graph:
    """Returns the instance with these values of the variables."""
    given = dict(zip(generalization.variables, values, strict=True))
    symbols = generalization.symbols
    return fill(generalization.skeleton, [given[each] if isinstance(each, Variable) else each for each in symbols])
