"""Generalizations as graphs: what is compiled for all instances, and whose text is the key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fusioncache.ir import Graph, NumberType, Ref, Value
from fusioncache.template.generalization import Generalization, Symbol, Variable
from fusioncache.template.holes import count_input_holes, fill_in_order, read_holes
from fusioncache.template.writer import renumber


@dataclass(frozen=True, slots=True)
class GeneralGraph:
    """The graph of a generalization, with a value for each variable.

    A variable that is a size of an input is a symbolic size: it is found there. Any other one, such as the product of
    two sizes or what is left of one, is a number among the inputs, behind those of the region.

    Attributes:
        graph: in the order of the skeleton. Without variables it is the region itself.
        numbers: for each input behind those of the region, its variable.
    """

    graph: Graph
    numbers: tuple[Variable, ...]


def write_general_graph(generalization: Generalization) -> GeneralGraph:
    """Returns the graph of a generalization."""
    skeleton, symbols = generalization.skeleton.graph, generalization.symbols
    sizes = dict.fromkeys(symbol for symbol in symbols[: count_input_holes(skeleton)] if isinstance(symbol, Variable))
    numbers = [variable for variable in generalization.variables if variable not in sizes]
    kinds = dict(zip(symbols, read_holes(skeleton), strict=True))
    added = tuple(NumberType("int" if isinstance(kinds[variable], int) else "float") for variable in numbers)
    graph = _make_room(skeleton, added, len(sizes))
    values = {variable: len(skeleton.inputs) + index for index, variable in enumerate(numbers)}
    values |= {variable: graph.first_result - len(sizes) + index for index, variable in enumerate(sizes)}
    filled = fill_in_order(graph, [_content(symbol, values) for symbol in symbols])
    return GeneralGraph(filled, tuple(numbers))


def _content(symbol: Symbol, values: Mapping[Variable, int]) -> Value | Ref:
    return Ref(values[symbol]) if isinstance(symbol, Variable) else symbol


def _make_room(graph: Graph, added: tuple[NumberType, ...], sizes: int) -> Graph:
    """Returns a graph with further inputs behind its own, and further symbolic sizes behind its own."""
    before, first_result = len(graph.inputs), graph.first_result

    def move(value: int) -> Ref:
        if value < before:
            return Ref(value)
        return Ref(value + len(added) + (sizes if value >= first_result else 0))

    return renumber(move, (*graph.inputs, *added), graph.ops, graph.outputs, graph.sizes + sizes)
