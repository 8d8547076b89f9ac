"""Generalizations: the common form of regions with one skeleton, as specific as possible.

A single region is its own generalization. In the generalization of several regions, a hole with the same value in all
of them holds this value. All other holes hold variables; two holes share a variable if their values are equal in each
region. This is the least general generalization of the lists of their values (Plotkin, "A note on inductive
generalization", 1970). So neither the order nor the grouping of the regions matters, and a region that is already an
instance changes nothing.

Sizes that are equal by chance are one variable until a region is added in which they differ. That gives another
generalization, with another key: an existing generalization never changes. A region is an instance only if its skeleton
is equal and each hole fits, so that the generalization with the variables' values is exactly the region.

The general graph of a generalization is compiled for all instances, and its text is the key. A family consists of
regions and their generalization.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusioncache.ir import GeneralInstance, GeneralRegion, Graph, Instance, NumberType, Ref, TensorType, Value
from fusioncache.ir.graph import inverse, pick
from fusioncache.template.skeleton import BLANK_SIZE, Skeleton, fill_in_order, read_holes, take_holes
from fusioncache.template.writer import renumber


@dataclass(frozen=True, slots=True)
class Variable:
    """A placeholder with one value in each instance. ``number`` counts the variables in the order of the holes."""

    number: int


Symbol = Value | Variable
Place = tuple[int, int]
"""An input and one of its dimensions."""


@dataclass(frozen=True, slots=True)
class Generalization:
    """All regions that have a skeleton and certain values in its holes.

    Attributes:
        skeleton: the common graph, with blank holes.
        symbols: for each hole, the value that it holds in all regions, or a variable.
    """

    skeleton: Skeleton
    symbols: tuple[Symbol, ...]

    @property
    def variables(self) -> tuple[Variable, ...]:
        """The variables, in the order of their numbers."""
        return tuple(dict.fromkeys(symbol for symbol in self.symbols if isinstance(symbol, Variable)))


def single_region(graph: Graph) -> Generalization:
    """Returns the generalization whose only instance is this graph, which is in canonical order."""
    return Generalization(*take_holes(graph))


def generalize(generalizations: Sequence[Generalization]) -> Generalization:
    """Returns the least general generalization that includes all instances of these.

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
    """Returns the symbol of a hole, given its symbol in each generalization. Equal columns get the same variable."""
    first = column[0]
    if not isinstance(first, Variable) and all(symbol == first for symbol in column):
        return first
    return variables.setdefault(column, Variable(len(variables)))


def fit_holes(generalization: Generalization, holes: Sequence[Value]) -> tuple[Value, ...] | None:
    """Returns the values of the variables for which a generalization is a region; None if it is not an instance.

    Args:
        generalization: the generalization.
        holes: the values in the region's holes, as ``read_holes`` returns them. It has the same skeleton.
    """
    values: dict[Variable, Value] = {}
    for symbol, value in zip(generalization.symbols, holes, strict=True):
        expected = values.setdefault(symbol, value) if isinstance(symbol, Variable) else symbol
        if expected != value:
            return None
    return tuple(values.values())


def write_general_graph(generalization: Generalization, places: Sequence[Place | None]) -> Graph:
    """Returns the graph of a generalization, in the order of the skeleton.

    A variable that is a size of an input is a symbolic size, found there. Any other one, such as the product of two
    sizes or the rest of one after a slice, is a number input. Number inputs come behind the region's inputs, in
    the order of the variables. Without variables the graph is the region itself.

    Args:
        generalization: the generalization.
        places: of its variables, as ``find_places`` returns them.
    """
    skeleton, symbols = generalization.skeleton, generalization.symbols
    placed = list(zip(generalization.variables, places, strict=True))
    sizes = [variable for variable, place in placed if place is not None]
    numbers = [variable for variable, place in placed if place is None]
    kinds = dict(zip(symbols, read_holes(skeleton), strict=True))
    added = tuple(NumberType("int" if isinstance(kinds[variable], int) else "float") for variable in numbers)
    graph = _make_room(skeleton, added, len(sizes))
    values = {variable: len(skeleton.inputs) + index for index, variable in enumerate(numbers)}
    values |= {variable: graph.first_result - len(sizes) + index for index, variable in enumerate(sizes)}
    contents = [Ref(values[symbol]) if isinstance(symbol, Variable) else symbol for symbol in symbols]
    return fill_in_order(graph, contents)


def _make_room(graph: Graph, added: tuple[NumberType, ...], sizes: int) -> Graph:
    """Returns a graph with additional inputs and symbolic sizes, each behind the existing ones."""
    before, first_result = len(graph.inputs), graph.first_result

    def move(value: int) -> Ref:
        if value < before:
            return Ref(value)
        return Ref(value + len(added) + (sizes if value >= first_result else 0))

    return renumber(move, (*graph.inputs, *added), graph.ops, graph.outputs, graph.sizes + sizes)


@dataclass(frozen=True, slots=True)
class RegionFamily:
    """A generalization of regions with one skeleton, and the general region for compilers."""

    generalization: Generalization
    general: GeneralRegion

    def find_instance(self, region: Graph) -> GeneralInstance | None:
        """Returns a region as an instance of the general one; None if it is not an instance."""
        skeleton, holes = take_holes(region)
        if skeleton != self.generalization.skeleton:
            return None
        values = fit_holes(self.generalization, holes)
        return None if values is None else GeneralInstance(self.general, values)


def make_family(regions: Sequence[Graph]) -> RegionFamily:
    """Returns the family of these regions.

    Raises:
        ValueError: if there are none, or their skeletons differ.
    """
    generalization = generalize([single_region(region) for region in regions])
    values = [fit_holes(generalization, read_holes(region)) for region in regions]
    places = find_places(generalization)
    graph = write_general_graph(generalization, places)
    known = tuple(found for found in values if found is not None)
    return RegionFamily(generalization, GeneralRegion(graph, places, tuple(regions), known))


def find_places(generalization: Generalization) -> tuple[Place | None, ...]:
    """Returns the first place of each variable among the sizes of inputs; None for a variable that is no such size."""
    skeleton = generalization.skeleton
    found: dict[Variable, Place] = {}
    contents = iter(generalization.symbols)
    for number, type_ in enumerate(skeleton.inputs):
        for dimension, size in enumerate(type_.shape if isinstance(type_, TensorType) else ()):
            symbol = next(contents) if size == BLANK_SIZE else None
            if isinstance(symbol, Variable):
                found.setdefault(symbol, (number, dimension))
    return tuple(map(found.get, generalization.variables))


def identity_instance(graph: Graph) -> Instance:
    """Returns a graph as an instance of itself, with inputs and outputs in the same order."""
    return Instance(graph, tuple(range(len(graph.inputs))), tuple(range(len(graph.outputs))))


def in_order_of_template(instance: Instance) -> Graph:
    """Returns a region with inputs and outputs in the order of its template. Its ops keep their order.

    So regions of different sizes have the same order, independent of the order of their calls' arguments.
    """
    region, place = instance.region, instance.inputs
    order = inverse(place)

    def move(value: int) -> Ref:
        return Ref(place[value] if value < len(place) else value)

    inputs, outputs = pick(region.inputs, order), pick(region.outputs, instance.outputs)
    return renumber(move, inputs, region.ops, outputs, region.sizes)
