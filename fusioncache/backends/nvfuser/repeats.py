"""Repeats that nvFuser would compute in another order, such as keys that several queries share.

A repeat is an expanded dimension that a reshape merges with its neighbour. If only sums, products, slices and such are
behind it, nvFuser's pass ``MoveRepeatForward`` (NVIDIA/Fuser#4338, in nvFuser 0.2.36) moves it behind them: they
compute what is not repeated yet, and then all of the dimension is repeated, as a b a b. That is right for an expanded
dimension in front of its neighbour. For one behind it, as of ``repeat_interleave``, a a b b is meant, so that heads get
other keys than theirs, under Thunder alone as well: docs/upstream.md has a script. The pass does not move a repeat past
a copy, and no kernel makes a tensor of one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from fusioncache.ir import Arg, Const, Graph, Op, Ref, TensorType, ValueType
from fusioncache.ir.graph import argument_refs

_COPY, _EXPAND, _RESHAPE, _TRANSPOSE = (
    f"prims.{name}" for name in ("shallow_copy", "broadcast_in_dim", "reshape", "transpose")
)
"""Operations by name. nvFuser is told nothing of a shallow copy."""

Shape = tuple[int | Ref, ...]
Expanded = tuple[bool, ...]
"""Of each dimension of a tensor whether its elements may be one that is repeated, for all that nvFuser knows."""


def find_repeats(graph: Graph, layouts: Sequence[Any]) -> frozenset[int]:
    """Returns the positions of ops that reshape an expanded tensor, where another op computes something of the result.

    Args:
        graph: the graph.
        layouts: of its inputs: see ``describe_tensor``; None for a number.
    """
    shapes = {number: _shape_of(type_) for number, type_ in enumerate(graph.inputs)}
    expanded = {
        number: _read_layout(shapes[number], layout)
        for number, (_, layout) in enumerate(zip_longest(graph.inputs, layouts))
    }
    used, found = _find_used(graph), set()
    for position, (op, result) in enumerate(graph.results()):
        operands = [number for _, number in argument_refs(op) if shapes.get(number)]
        if op.name == _RESHAPE and operands and any(expanded[operands[0]]) and result in used:
            found.add(position)
        for number, type_ in enumerate(op.outputs, result):
            shapes[number] = _shape_of(type_)
            expanded[number] = _follow(op, shapes[number], operands, shapes, expanded)
    return frozenset(found)


def _read_layout(shape: Shape, layout: Any) -> Expanded:
    """Reads the contiguity of an argument's dimensions, of which expanded ones have none, as those of size 1."""
    if layout is None:
        return (False,) * len(shape)
    return tuple(size != 1 and contiguous is None for size, contiguous in zip(shape, layout[0], strict=True))


def _follow(
    op: Op, shape: Shape, operands: Sequence[int], shapes: Mapping[int, Shape], expanded: Mapping[int, Expanded]
) -> Expanded:
    """Returns which dimensions of an op's result may be expanded."""
    if not any(any(expanded[operand]) for operand in operands) and op.name != _EXPAND:
        return (False,) * len(shape)
    if op.name == _EXPAND:
        old, before = (shapes[operands[0]], expanded[operands[0]]) if operands else ((), ())
        return _expand(shape, old, before, _integers(op.args[2]))
    if op.name == _TRANSPOSE:
        return tuple(expanded[operands[0]][dimension] for dimension in _integers(op.args[1]))
    if op.name == _RESHAPE:
        return _reshape(shape, shapes[operands[0]], expanded[operands[0]])
    if all(shapes[operand] == shape for operand in operands):  # element by element: it is computed where one is whole
        return tuple(map(all, zip(*(expanded[operand] for operand in operands), strict=True)))
    return tuple(size != 1 for size in shape)


def _expand(shape: Shape, old: Shape, expanded: Expanded, dimensions: Sequence[int]) -> Expanded:
    """Follows a broadcast: dimensions are put in, or had a size of 1."""
    place = {dimension: number for number, dimension in enumerate(dimensions)}
    return tuple(
        size != 1 and (number not in place or old[place[number]] != size or expanded[place[number]])
        for number, size in enumerate(shape)
    )


def _reshape(shape: Shape, old: Shape, expanded: Expanded) -> Expanded:
    """Follows a reshape: what is left and right of it stays as it is, what is merged to one dimension is whole."""
    same = zip_longest(shape, old)
    left = next((number for number, (size, before) in enumerate(same) if size != before), len(shape))
    most = min(len(shape), len(old)) - left
    right = next((number for number in range(most) if shape[-1 - number] != old[-1 - number]), most)
    middle = len(shape) - left - right
    may = middle > 1 and any(expanded[left : len(old) - right])
    return (*expanded[:left], *(may,) * middle, *expanded[len(old) - right :])


def _find_used(graph: Graph) -> set[int]:
    """Returns the values that an op computes something of. Who reads a copy reads what was copied."""
    used: set[int] = set()
    for op, result in reversed(list(graph.results())):
        if op.name != _COPY or result in used:
            used.update(number for _, number in argument_refs(op))
    return used


def _integers(arg: Arg) -> list[int]:
    return [int(each.text) for each in arg if isinstance(each, Const)] if isinstance(arg, tuple) else []


def _shape_of(type_: ValueType | None) -> Shape:
    return type_.shape if isinstance(type_, TensorType) else ()
