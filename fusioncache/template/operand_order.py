"""The test whether results depend on the order in which a region writes its operands.

``a + b`` and ``b + a`` have the same bits, and share a template. But where the operands order their dimensions
differently in memory, the result has the first one's order, and later results may have other bits, because sums go
along the memory. Then an executable is compiled from each region's own text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from fusioncache.ir import Graph, Op, Ref, TensorType, ValueType, refs_in
from fusioncache.ir.ops import op_traits
from fusioncache.ir.request import ArgumentLayout, ArgumentLayouts
from fusioncache.template.strides import Strided, strides_of


def depends_on_operand_order(graph: Graph, layouts: ArgumentLayouts) -> bool:
    """Returns whether results for arguments of these layouts depend on the order of operands; True when in doubt.

    Args:
        graph: in canonical order, without parameters.
        layouts: of the arguments.
    """
    sizes = _sizes(graph, layouts)
    if any(index not in sizes for type_ in _list_types(graph) for _, index in refs_in(type_)):
        return True  # a number among the inputs is a size
    if _have_different_orders(layouts) or not all(map(partial(_fits, sizes=sizes), graph.inputs, layouts)):
        return True
    values: list[Strided | None] = [layout and _as_strided(layout) for layout in layouts]
    is_tensor = [isinstance(type_, TensorType) for type_ in graph.inputs]
    values += [None] * graph.sizes
    is_tensor += [False] * graph.sizes
    for op, _ in graph.results():
        operands = [values[index] for arg in op.args for _, index in refs_in(arg) if is_tensor[index]]
        results = [_result(op, operands, type_, sizes) for type_ in op.outputs]
        if op_traits(op.name).commutes and len(operands) > 1:
            other = _result(op, operands[::-1], op.outputs[0], sizes)
            if results[0] is None or other is None or results[0].apparent != other.apparent:
                return True
        values += results
        is_tensor += [True] * len(results)
    return False


def _list_types(graph: Graph) -> Iterator[ValueType | None]:
    yield from graph.inputs
    for op in graph.ops:
        yield from op.outputs


def _result(
    op: Op, operands: Sequence[Strided | None], type_: ValueType | None, sizes: dict[int, int]
) -> Strided | None:
    return strides_of(op, operands, _shape(type_, sizes)) if isinstance(type_, TensorType) else None


def _shape(type_: TensorType, sizes: dict[int, int]) -> tuple[int, ...]:
    return tuple(sizes[size.index] if isinstance(size, Ref) else size for size in type_.shape)


def _fits(type_: ValueType, layout: ArgumentLayout | None, sizes: dict[int, int]) -> bool:
    """Whether an argument has the shape that it should have: Thunder may be mistaken about what it is given."""
    return layout is None or not isinstance(type_, TensorType) or tuple(layout[0]) == _shape(type_, sizes)


def _have_different_orders(layouts: ArgumentLayouts) -> bool:
    """Whether arguments order their dimensions differently, so that the first one may decide the results' strides."""
    tensors = [_as_strided(layout) for layout in layouts if layout is not None]
    orders = {order for order in map(_order, tensors) if len(order) > 1}
    return len(orders) > 1 and any(list(order) != sorted(order) for order in orders)


def _as_strided(layout: ArgumentLayout) -> Strided:
    return Strided(tuple(layout[0]), tuple(layout[1]))


def _order(tensor: Strided) -> tuple[int, ...]:
    """The dimensions from the slowest to the fastest, but for those that are broadcast or of one element."""
    dimensions = [index for index, size in enumerate(tensor.shape) if size > 1 and tensor.strides[index]]
    return tuple(sorted(dimensions, key=lambda dimension: -tensor.strides[dimension]))


def _sizes(graph: Graph, layouts: ArgumentLayouts) -> dict[int, int]:
    """The value of each symbolic size."""
    found: dict[int, int] = {}
    for type_, layout in zip(graph.inputs, layouts, strict=True):
        if isinstance(type_, TensorType) and layout is not None:
            found |= {s.index: n for s, n in zip(type_.shape, layout[0], strict=False) if isinstance(s, Ref)}
    return found
