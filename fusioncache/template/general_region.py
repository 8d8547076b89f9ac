"""Regions that were generalized, with what they were generalized to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusioncache.ir import GeneralRegion, Graph, Instance, Ref, TensorType
from fusioncache.ir.permutation import inverse, pick
from fusioncache.template.general_graph import write_general_graph
from fusioncache.template.generalization import Generalization, Variable, fit_holes, generalize, only
from fusioncache.template.holes import BLANK_SIZE, count_input_holes, read_holes
from fusioncache.template.writer import renumber


@dataclass(frozen=True, slots=True)
class Family:
    """Regions with one skeleton, what they have in common, and the same as a compiler is given it."""

    generalization: Generalization
    general: GeneralRegion

    @property
    def variables(self) -> tuple[Variable, ...]:
        """What has a value of its own in each region."""
        return self.generalization.variables


def make_family(regions: Sequence[Graph]) -> Family:
    """Returns the family of some regions.

    Raises:
        ValueError: if there are none, or their skeletons differ.
    """
    generalization = generalize([only(region) for region in regions])
    values = [fit_holes(generalization, read_holes(region)) for region in regions]
    general = GeneralRegion(
        write_general_graph(generalization).graph,
        _find_places(generalization),
        tuple(regions),
        tuple(found for found in values if found is not None),
    )
    return Family(generalization, general)


def _find_places(generalization: Generalization) -> tuple[tuple[int, int] | None, ...]:
    """Returns the first place of each variable among the sizes of inputs."""
    skeleton = generalization.skeleton.graph
    found: dict[Variable, tuple[int, int]] = {}
    contents = iter(generalization.symbols[: count_input_holes(skeleton)])
    for number, type_ in enumerate(skeleton.inputs):
        for dimension, size in enumerate(type_.shape if isinstance(type_, TensorType) else ()):
            symbol = next(contents) if size == BLANK_SIZE else None
            if isinstance(symbol, Variable):
                found.setdefault(symbol, (number, dimension))
    return tuple(map(found.get, generalization.variables))


def in_order_of_template(instance: Instance) -> Graph:
    """Returns a region with its inputs and outputs in the order of its template, and its ops in its own.

    Regions of other sizes have the same order then, whatever order their calls had.
    """
    region, place = instance.region, instance.inputs
    order = inverse(place)

    def move(value: int) -> Ref:
        return Ref(place[value] if value < len(place) else value)

    inputs, outputs = pick(region.inputs, order), pick(region.outputs, instance.outputs)
    return renumber(move, inputs, region.ops, outputs, region.sizes)
