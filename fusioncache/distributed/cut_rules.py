"""What single operations do to a cut: each rule computes a rank's part of a result, or says that there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fusioncache.backends.symbols import symbol_name
from fusioncache.distributed.cut_layers import cut_embedding, cut_linear
from fusioncache.distributed.cut_values import CutValues
from fusioncache.distributed.cuts import align_right, follow_reshape, take_part
from fusioncache.ir.ops import op_traits

Rule = Callable[[CutValues, Any], bool]
"""Takes a bound symbol of which one operand is cut at least; tells whether it wrote what this rank does."""
Moved = tuple[int, tuple[Any, ...]] | None
Move = Callable[[Any, int, int], Moved]
"""Takes a bound symbol, along which dimension its tensor is cut and the number of ranks. Returns along which one its
result is, and its other arguments for a part; None if that is not cut along one."""


def operation_name(symbol: Any) -> str:
    """Returns what an operation is called here, such as ``prims.add``."""
    return symbol_name(symbol.sym) or str(symbol.sym.id)


def is_elementwise(symbol: Any) -> bool:
    """Tells whether an operation gives one tensor, each element of which is of its operands' at the same place."""
    return len(symbol.flat_proxy_outs) == 1 and all(_is_elementwise_leaf(leaf) for leaf in _leaves(symbol))


def _leaves(symbol: Any) -> Iterator[Any]:
    if not symbol.subsymbols:
        yield symbol
    for inner in symbol.subsymbols:
        yield from _leaves(inner)


def _is_elementwise_leaf(leaf: Any) -> bool:
    name = operation_name(leaf)
    if name == "prims.broadcast_in_dim":
        source, shape, dims = leaf.args
        return tuple(dims) == tuple(range(len(shape) - source.ndim, len(shape)))
    if name in ("prims.shallow_copy", "prims.stride_order"):
        return True
    traits = op_traits(name)
    return traits.elementwise and not traits.shape_only and bool(leaf.flat_proxy_args or not leaf.flat_proxy_outs)


def _following(move: Move) -> Rule:
    """Returns the rule of an operation that takes one tensor, and of which a rank's part has other arguments."""

    def follow(values: CutValues, symbol: Any) -> bool:
        (given,), tensor = symbol.flat_proxy_outs, symbol.args[0]
        cut = values.cut_of(tensor)
        moved = None if cut is None else move(symbol, cut.dim, values.ranks)
        if cut is None or moved is None:
            return False
        dim, args = moved
        values.give(given, symbol.sym(values.now(tensor), *args, **symbol.kwargs), cut.moved(dim))
        return True

    return follow


def _transpose(symbol: Any, dim: int, ranks: int) -> Moved:
    order = tuple(symbol.args[1])
    return order.index(dim), (order,)


def _reshape(symbol: Any, dim: int, ranks: int) -> Moved:
    tensor, shape = symbol.args
    found = follow_reshape(tensor.shape, shape, dim, ranks)
    return None if found is None else (found, (take_part(shape, found, ranks),))


def _broadcast(symbol: Any, dim: int, ranks: int) -> Moved:
    _, shape, dims = symbol.args
    return dims[dim], (take_part(shape, dims[dim], ranks), dims)


def _squeeze(symbol: Any, dim: int, ranks: int) -> Moved:
    dims = symbol.args[1]
    return dim - sum(one < dim for one in dims), (dims,)


def _reduce(symbol: Any, dim: int, ranks: int) -> Moved:
    dims = symbol.args[1]
    return None if dim in dims else (dim - sum(one < dim for one in dims), symbol.args[1:])


def _slice(symbol: Any, dim: int, ranks: int) -> Moved:
    tensor, start, end, *strides = symbol.args
    step = strides[0][dim] if strides and strides[0] is not None else 1
    if (start[dim], end[dim], step) != (0, tensor.shape[dim], 1):
        return None
    # Thunder's translator for nvFuser adds up lists.
    return dim, (start, [*take_part(end, dim, ranks)], *strides)


def _concatenate(values: CutValues, symbol: Any) -> bool:
    tensors, along = symbol.args
    (given,) = symbol.flat_proxy_outs
    cuts = [cut for tensor in tensors if (cut := values.cut_of(tensor))]
    dims = {cut.dim for cut in cuts}
    if len(dims) > 1 or along % given.ndim in dims:
        return False
    parts = [values.now(one) if values.cut_of(one) else values.own_part(one, cuts[0].dim) for one in tensors]
    values.give(given, symbol.sym(parts, along), cuts[0])
    return True


def _multiply(values: CutValues, symbol: Any) -> bool:
    """Matrices by matrices: a batch of them may be cut, or the rows of the left ones."""
    left, right = symbol.args
    (given,) = symbol.flat_proxy_outs
    cuts = [(one, cut) for one in (left, right) if (cut := values.cut_of(one))]
    dims = {align_right(cut.dim, one.ndim, given.ndim) for one, cut in cuts}
    if len(dims) > 1 or min(left.ndim, right.ndim) < 2:
        return False
    (dim,) = dims
    of_rows = dim == given.ndim - 2 and values.cut_of(right) is None
    if dim >= given.ndim - 2 and not of_rows:
        return False
    parts = []
    for one in (left, right):
        own = align_right(dim, given.ndim, one.ndim)
        if values.cut_of(one):
            parts.append(values.now(one))
        elif of_rows or own < 0 or one.shape[own] == 1:
            parts.append(values.enter(one))
        else:
            parts.append(values.own_part(one, own))
    values.give(given, symbol.sym(*parts), cuts[0][1].moved(dim))
    return True


def _attend(values: CutValues, symbol: Any) -> bool:
    """Attention of which the heads, or the batch, are cut. With dropout it is computed step by step."""
    query, key, value, mask, dropout, *_ = symbol.args
    cut, *others = (values.cut_of(one) for one in (query, key, value))
    if cut is None or any(other is None or other.dim != cut.dim for other in others) or dropout or values.cut_of(mask):
        return False
    dim = cut.dim
    if dim >= query.ndim - 2 or not query.ndim == key.ndim == value.ndim:
        return False
    now = {one.name: values.now(one) for one in (query, key, value)}
    if mask is not None:
        own = align_right(dim, query.ndim, mask.ndim)
        now[mask.name] = values.enter(mask) if own < 0 or mask.shape[own] == 1 else values.own_part(mask, own)
    return values.compute(symbol, now, cut)


RULES: Mapping[str, Rule] = {
    "torch.linear": cut_linear,
    "prims.linear": cut_linear,
    "torch.embedding": cut_embedding,
    "torch.scaled_dot_product_attention": _attend,
    "prims.matmul": _multiply,
    "prims.transpose": _following(_transpose),
    "prims.reshape": _following(_reshape),
    "prims.broadcast_in_dim": _following(_broadcast),
    "prims.squeeze": _following(_squeeze),
    "prims.slice_prim": _following(_slice),
    "prims.cat": _concatenate,
    **{f"prims.{name}": _following(_reduce) for name in ("amax", "amin", "prod", "sum", "var")},
}
"""The rule of each operation that has one, by its name. Those that go element by element need none."""
