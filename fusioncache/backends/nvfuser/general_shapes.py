"""The shapes that a general region has for values of its variables, and results that have these.

nvFuser forgets that a result is expanded where one definition does for all lengths of a slice:

    t1 = slice(table, [0, 0], [length, 64])
    t2 = broadcast_in_dim(t1, [2, 4, length, 64], [2, 3])      has the shape [1, 1, length, 64], and the right elements
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fusioncache.backends.api import Run
from fusioncache.ir import GeneralRegion, Ref, TensorType, Value, ValueType

Shape = tuple[int, ...]


def find_sizes(general: GeneralRegion, values: Sequence[Value]) -> Mapping[int, int]:
    """Returns the variables that are sizes, by the numbers of their values in the graph."""
    inputs, found = general.graph.inputs, {}
    number = len(inputs) - sum(place is None for place in general.places)
    for value, place in zip(values, general.places, strict=True):
        if place is None:
            index, number = number, number + 1
        else:
            type_ = inputs[place[0]]
            assert isinstance(type_, TensorType)
            size = type_.shape[place[1]]
            assert isinstance(size, Ref)
            index = size.index
        if isinstance(value, int):
            found[index] = value
    return found


def fill_shape(type_: ValueType | None, sizes: Mapping[int, int]) -> Shape | None:
    """Returns the shape of a tensor for these sizes; None if it is not known, or there is no tensor."""
    if not isinstance(type_, TensorType):
        return None
    shape = tuple(sizes.get(size.index) if isinstance(size, Ref) else size for size in type_.shape)
    return None if None in shape else shape  # type: ignore[return-value]


def find_result_shapes(general: GeneralRegion, values: Sequence[Value]) -> tuple[Shape | None, ...]:
    """Returns the shape of each result of a region with these values; None for one of which it is not known."""
    graph, sizes = general.graph, find_sizes(general, values)
    types = [*graph.inputs, *([None] * graph.sizes), *(type_ for op in graph.ops for type_ in op.outputs)]
    return tuple(fill_shape(types[output], sizes) for output in graph.outputs)


def expand_results(run: Run, general: GeneralRegion, values: Sequence[Value]) -> Run:
    """Returns a function that gives what another one does, expanded to the shapes that the region has.

    What is none of these shapes even so stays as it is; and all does, where the arguments are not what they should be:
    Thunder may be mistaken about those.

    Args:
        run: a function for any sizes.
        general: its region.
        values: of the variables.
    """
    shapes, sizes = find_result_shapes(general, values), find_sizes(general, values)

    def call(args: Sequence[Any]) -> Sequence[Any]:
        results = run(args)
        if all(shape is None or result.shape == shape for result, shape in zip(results, shapes, strict=True)):
            return results
        declared = (fill_shape(type_, sizes) for type_ in general.graph.inputs)
        known = zip(args, declared, strict=False)  # behind those of the regions come variables that are numbers
        if not all(shape is None or arg.shape == shape for arg, shape in known):
            return results
        return [_expand(result, shape) for result, shape in zip(results, shapes, strict=True)]

    return call


def _expand(result: Any, shape: Shape | None) -> Any:
    if shape is None or result.dim() != len(shape):
        return result
    fits = all(size in (1, wanted) for size, wanted in zip(result.shape, shape, strict=True))
    return result.expand(shape) if fits else result
