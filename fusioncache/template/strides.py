"""The strides that torch gives the results of operations, as far as they can be predicted.

An elementwise result has its operands' order of dimensions; if their orders differ, the first operand decides. Unknown
strides are None.

So results may depend on the order of operands in a region: ``a + b`` and ``b + a`` have the same bits, and share a
template. But where the operands order their dimensions differently in memory, later results may have other bits,
because sums run along memory. Then an executable is compiled from the text of each region.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from fusioncache.ir import Const, Graph, Op, Ref, TensorType, ValueType, refs_in
from fusioncache.ir.ops import CONTIGUOUS, CONVERT, ELEMENTWISE, FULL_LIKE, RESHAPE, op_traits
from fusioncache.ir.template import ArgumentLayout, ArgumentLayouts

_CHANNELS_LAST = (0, 2, 3, 1)
"""The dimensions of images in the memory format channels last, from the slowest to the fastest."""


@dataclass(frozen=True, slots=True)
class Strided:
    """The layout of a tensor: sizes and strides, in elements, of its dimensions."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def apparent(self) -> tuple[int, ...]:
        """The observable strides: those of dimensions of more than one element."""
        if 0 in self.shape:
            return ()
        return tuple(stride for size, stride in zip(self.shape, self.strides, strict=True) if size > 1)

    @property
    def is_contiguous(self) -> bool:
        """True if elements are adjacent in memory, in row-major order."""
        return self.apparent == row_major(self.shape).apparent

    @property
    def is_dense(self) -> bool:
        """True if each memory location from the first to the last belongs to exactly one element."""
        step = 1
        for stride, size in sorted(zip(self.strides, self.shape, strict=True)):
            if size > 1:
                if stride != step:
                    return False
                step *= size
        return True


_NUMBER = Strided((), ())
"""The layout of a number, which torch converts to a tensor for a kernel."""


def strided_of(tensor: Any) -> Strided:
    """Returns the shape and the strides of a tensor."""
    return Strided(tuple(tensor.shape), tensor.stride())


def row_major(shape: tuple[int, ...]) -> Strided:
    """Returns the layout of a contiguous tensor."""
    return _pack(shape, range(len(shape)))


def contiguous_layouts(graph: Graph) -> ArgumentLayouts | None:
    """Returns the layouts of a graph's arguments if all are contiguous; None if the graph has symbolic sizes."""
    return None if graph.sizes else tuple(map(_contiguous_layout, graph.inputs))


def _contiguous_layout(type_: ValueType) -> ArgumentLayout | None:
    if not isinstance(type_, TensorType):
        return None
    packed = row_major(tuple(size for size in type_.shape if isinstance(size, int)))
    return packed.shape, packed.strides


def lay_out_alike(layouts: ArgumentLayouts, graph: Graph) -> ArgumentLayouts | None:
    """Returns layouts for the arguments of a graph, with the dimension orders of given layouts.

    Args:
        layouts: of arguments of the same graph with other sizes.
        graph: the graph.

    Returns:
        The layouts; None if the graph has symbolic sizes, or if one of the given layouts has gaps or overlaps.
    """
    if graph.sizes or len(layouts) != len(graph.inputs):
        return None
    found: list[ArgumentLayout | None] = []
    for layout, type_ in zip(layouts, graph.inputs, strict=True):
        if layout is None or not isinstance(type_, TensorType):
            found.append(None)
            continue
        shape = tuple(size for size in type_.shape if isinstance(size, int))
        packed = _pack_alike(_as_strided(layout), shape)
        if packed is None:
            return None
        found.append((packed.shape, packed.strides))
    return tuple(found)


def _pack_alike(other: Strided, shape: tuple[int, ...]) -> Strided | None:
    if len(shape) != len(other.shape) or not other.is_dense:
        return None
    packed = _pack(shape, sorted(range(len(shape)), key=lambda axis: (-other.strides[axis], axis)))
    return Strided(shape, tuple(_scale_stride(axis, other, packed) for axis in range(len(shape))))


def _scale_stride(axis: int, other: Strided, packed: Strided) -> int:
    """Returns the stride of a dimension in a packed layout.

    Torch derives the stride of a dimension of one element from another dimension, so it is scaled with that one.
    """
    if packed.shape[axis] == 1:
        for index, (size, stride) in enumerate(zip(other.shape, other.strides, strict=True)):
            if size > 1 and other.strides[axis] in (size * stride, stride):
                whole = other.strides[axis] == size * stride
                return packed.strides[index] * (packed.shape[index] if whole else 1)
    return packed.strides[axis]


def strides_of(op: Op, operands: Sequence[Strided | None], shape: tuple[int, ...]) -> Strided | None:
    """Returns the layout of a result of an op; None if it is unknown, or if its shape would not be the given one.

    Args:
        op: the op.
        operands: the layouts of its tensors, in order.
        shape: of the result.
    """
    known = [operand for operand in operands if operand is not None]
    if len(known) < len(operands):
        return None
    rule = _RULES.get(op.name)
    if rule is not None and len(known) == 1:
        return rule(op, known[0], shape)
    traits = op_traits(op.name)
    if known and (rule is None or len(known) > 1) and (traits.elementwise or op.name == ELEMENTWISE):
        numbers = sum(isinstance(arg, Const) for arg in op.args)
        return _elementwise([*known, *[_NUMBER] * numbers], shape)
    if op.name == CONTIGUOUS:
        return row_major(shape)
    return row_major(shape) if traits.contiguous and all(value.is_contiguous for value in known) else None


def _elementwise(operands: Sequence[Strided], shape: tuple[int, ...]) -> Strided | None:
    """Returns the layout that torch's ``TensorIterator`` gives its result; None if the result has another shape."""
    if _broadcast_shape(operands) != shape:
        return None
    if all(operand.shape == shape for operand in operands):
        packed = [row_major(shape), *([_pack(shape, _CHANNELS_LAST)] if len(shape) == len(_CHANNELS_LAST) else [])]
        for layout in packed:
            if all(operand.apparent == layout.apparent for operand in operands):
                return layout
        if all(operand.strides == operands[0].strides for operand in operands) and operands[0].is_dense:
            return operands[0]
    aligned = [_broadcast(operand, shape) for operand in operands]

    def before(one: int, other: int) -> int:
        """Returns below 0 if the first of two dimensions varies faster, above 0 if the second does, 0 if undecided."""
        for strides in aligned:
            a, b = strides[one], strides[other]
            if a and b and a != b:
                return a - b
            if a and b and shape[one] > shape[other]:
                return 1
        return 0

    order = list(reversed(range(len(shape))))
    for index in range(1, len(order)):
        current = index
        for earlier in range(index - 1, -1, -1):
            compared = before(order[earlier], order[current])
            if compared > 0:
                order[earlier], order[current] = order[current], order[earlier]
                current = earlier
            elif compared < 0:
                break
    return _pack(shape, list(reversed(order)))


def _pack(shape: tuple[int, ...], order: Sequence[int]) -> Strided:
    """Returns the layout of a tensor without gaps. ``order`` is its dimensions from the slowest to the fastest."""
    strides, step = [0] * len(shape), 1
    for dimension in reversed(order):
        strides[dimension] = step
        step *= max(shape[dimension], 1)
    return Strided(shape, tuple(strides))


def _broadcast_shape(operands: Sequence[Strided]) -> tuple[int, ...] | None:
    """Returns the shape of an elementwise result of these operands; None if they cannot be broadcast."""
    rank = max((len(operand.shape) for operand in operands), default=0)
    padded = [(1,) * (rank - len(operand.shape)) + operand.shape for operand in operands]
    sizes = [{size for size in dimension if size != 1} for dimension in zip(*padded, strict=True)]
    return None if any(len(size) > 1 for size in sizes) else tuple(size.pop() if size else 1 for size in sizes)


def _broadcast(value: Strided, shape: tuple[int, ...]) -> list[int]:
    """Returns the strides of a tensor in the dimensions of a larger one."""
    added = len(shape) - len(value.shape)
    sizes = zip(value.shape, value.strides, shape[added:], strict=True)
    return [0] * added + [0 if own == 1 != size else stride for own, stride, size in sizes]


def _convert(op: Op, value: Strided, shape: tuple[int, ...]) -> Strided | None:
    if value.shape == shape and value.is_dense:
        return value
    return _elementwise([value], shape)


def _power(op: Op, value: Strided, shape: tuple[int, ...]) -> Strided | None:
    """Returns a layout without gaps if the base is a constant; None if the only tensor may be the exponent."""
    base, exponent = op.args
    if isinstance(base, Const):
        return row_major(shape)
    return _elementwise([value], shape) if isinstance(exponent, Const) else None


def _expand(op: Op, value: Strided, shape: tuple[int, ...]) -> Strided | None:
    dims = _numbers(op.args[2])
    if dims is None:
        return None
    sizes, strides = list(value.shape), list(value.strides)
    for dimension in range(len(shape)):
        if dimension not in dims:
            strides.insert(dimension, sizes[dimension] * strides[dimension] if dimension < len(sizes) else 1)
            sizes.insert(dimension, 1)
    return Strided(shape, tuple(0 if own != new else s for own, new, s in zip(sizes, shape, strides, strict=True)))


def _transpose(op: Op, value: Strided, shape: tuple[int, ...]) -> Strided | None:
    dims = _numbers(op.args[1])
    return None if dims is None else Strided(shape, tuple(value.strides[dimension] for dimension in dims))


def _squeeze(op: Op, value: Strided, shape: tuple[int, ...]) -> Strided | None:
    dims = _numbers(op.args[1])
    if dims is None:
        return None
    gone = {dimension % len(value.shape) for dimension in dims}
    return Strided(shape, tuple(stride for index, stride in enumerate(value.strides) if index not in gone))


def _slice(op: Op, value: Strided, shape: tuple[int, ...]) -> Strided | None:
    steps = op.args[3] if len(op.args) > 3 else dict(op.kwargs).get("strides", Const("none", "None"))
    if isinstance(steps, Const) and steps.kind == "none":
        return Strided(shape, value.strides)
    numbers = _numbers(steps)
    if numbers is None:
        return None
    return Strided(shape, tuple(stride * step for stride, step in zip(value.strides, numbers, strict=True)))


def _reshape(op: Op, value: Strided, shape: tuple[int, ...]) -> Strided | None:
    """Returns None if the operand is not contiguous: its reshape may be a view or a copy."""
    return row_major(shape) if value.is_contiguous else None


def _keep(op: Op, value: Strided, shape: tuple[int, ...]) -> Strided:
    return value


def _numbers(arg: object) -> tuple[int, ...] | None:
    if not isinstance(arg, tuple) or not all(isinstance(item, Const) and item.kind == "int" for item in arg):
        return None
    return tuple(int(item.text) for item in arg)


_RULES: Mapping[str, Callable[[Op, Strided, tuple[int, ...]], Strided | None]] = {
    "prims.broadcast_in_dim": _expand,
    CONVERT: _convert,
    FULL_LIKE: _convert,
    RESHAPE: _reshape,
    "prims.pow": _power,
    "prims.shallow_copy": _keep,
    "prims.slice_prim": _slice,
    "prims.squeeze": _squeeze,
    "prims.transpose": _transpose,
}


@lru_cache(maxsize=256)  # called several times for one call; each takes 2 ms for a graph of 80 operations
def depends_on_operand_order(graph: Graph, layouts: ArgumentLayouts) -> bool:
    """Returns whether results for arguments of these layouts depend on the order of operands; True when in doubt.

    Args:
        graph: in canonical order, without parameters.
        layouts: of the arguments.
    """
    sizes = find_sizes(graph, layouts)
    if any(index not in sizes for type_ in graph.types for _, index in refs_in(type_)):
        return True  # a number input is a size
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


def _result(
    op: Op, operands: Sequence[Strided | None], type_: ValueType | None, sizes: dict[int, int]
) -> Strided | None:
    return strides_of(op, operands, fill_shape(type_, sizes)) if isinstance(type_, TensorType) else None


def fill_shape(type_: TensorType, sizes: Mapping[int, int] | Sequence[Any]) -> tuple[int, ...]:
    """Returns the shape of a tensor, given the value of each symbolic size by its number."""
    return tuple(sizes[size.index] if isinstance(size, Ref) else size for size in type_.shape)


def _fits(type_: ValueType, layout: ArgumentLayout | None, sizes: dict[int, int]) -> bool:
    """True if an argument has the declared shape: Thunder may be wrong about the shapes of inputs."""
    return layout is None or not isinstance(type_, TensorType) or tuple(layout[0]) == fill_shape(type_, sizes)


def _have_different_orders(layouts: ArgumentLayouts) -> bool:
    """True if arguments have different dimension orders, so that the first one may decide the results' strides."""
    tensors = [_as_strided(layout) for layout in layouts if layout is not None]
    orders = {order for order in map(_order, tensors) if len(order) > 1}
    return len(orders) > 1 and any(list(order) != sorted(order) for order in orders)


def _as_strided(layout: ArgumentLayout) -> Strided:
    return Strided(tuple(layout[0]), tuple(layout[1]))


def _order(tensor: Strided) -> tuple[int, ...]:
    """Returns the dimensions from the slowest to the fastest, without those that are broadcast or of one element."""
    dimensions = [index for index, size in enumerate(tensor.shape) if size > 1 and tensor.strides[index]]
    return tuple(sorted(dimensions, key=lambda dimension: -tensor.strides[dimension]))


def find_sizes(graph: Graph, layouts: ArgumentLayouts) -> dict[int, int]:
    """Returns the value of each symbolic size, by its index."""
    found: dict[int, int] = {}
    for type_, layout in zip(graph.inputs, layouts, strict=True):
        if isinstance(type_, TensorType) and layout is not None:
            found |= {s.index: n for s, n in zip(type_.shape, layout[0], strict=False) if isinstance(s, Ref)}
    return found
