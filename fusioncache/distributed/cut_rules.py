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


def _follow(values: CutValues, symbol: Any, dim: int | None, *args: Any) -> bool:
    """Does what a bound symbol of one tensor does to this rank's part, with these other arguments."""
    (given,), tensor = symbol.flat_proxy_outs, symbol.args[0]
    cut = values.cut_of(tensor)
    if cut is None or dim is None:
        return False
    values.give(given, symbol.sym(values.now(tensor), *args, **symbol.kwargs), cut.moved(dim))
    return True


def _transpose(values: CutValues, symbol: Any) -> bool:
    tensor, order = symbol.args
    return _follow(values, symbol, tuple(order).index(values.cut_of(tensor).dim), order)


def _reshape(values: CutValues, symbol: Any) -> bool:
    tensor, shape = symbol.args
    dim = follow_reshape(tensor.shape, shape, values.cut_of(tensor).dim, values.ranks)
    return dim is not None and _follow(values, symbol, dim, take_part(shape, dim, values.ranks))


def _broadcast(values: CutValues, symbol: Any) -> bool:
    tensor, shape, dims = symbol.args
    dim = dims[values.cut_of(tensor).dim]
    return _follow(values, symbol, dim, take_part(shape, dim, values.ranks), dims)


def _squeeze(values: CutValues, symbol: Any) -> bool:
    tensor, dims = symbol.args
    dim = values.cut_of(tensor).dim
    return _follow(values, symbol, dim - sum(one < dim for one in dims), dims)


def _reduce(values: CutValues, symbol: Any) -> bool:
    tensor, dims, *others = symbol.args
    dim = values.cut_of(tensor).dim
    return dim not in dims and _follow(values, symbol, dim - sum(one < dim for one in dims), dims, *others)


def _slice(values: CutValues, symbol: Any) -> bool:
    tensor, start, end, *strides = symbol.args
    dim, size = values.cut_of(tensor).dim, tensor.shape[values.cut_of(tensor).dim]
    step = strides[0][dim] if strides and strides[0] is not None else 1
    if (start[dim], end[dim], step) != (0, size, 1):
        return False
    return _follow(values, symbol, dim, start, take_part(end, dim, values.ranks), *strides)


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
    cuts = [values.cut_of(one) for one in (query, key, value)]
    if any(cut is None for cut in cuts) or len({cut.dim for cut in cuts if cut}) > 1 or dropout:
        return False
    dim = cuts[0].dim
    if dim >= query.ndim - 2 or not query.ndim == key.ndim == value.ndim:
        return False
    now = {one.name: values.now(one) for one in (query, key, value)}
    if mask is not None and not values.cut_of(mask):
        own = align_right(dim, query.ndim, mask.ndim)
        alike = own < 0 or mask.shape[own] == 1
        now[mask.name] = values.enter(mask) if alike else values.own_part(mask, own)
    elif mask is not None:
        return False
    return values.compute(symbol, now, cuts[0])


RULES: Mapping[str, Rule] = {
    "torch.linear": cut_linear,
    "prims.linear": cut_linear,
    "torch.embedding": cut_embedding,
    "torch.scaled_dot_product_attention": _attend,
    "prims.matmul": _multiply,
    "prims.transpose": _transpose,
    "prims.reshape": _reshape,
    "prims.broadcast_in_dim": _broadcast,
    "prims.squeeze": _squeeze,
    "prims.slice_prim": _slice,
    "prims.cat": _concatenate,
    **{f"prims.{name}": _reduce for name in ("amax", "amin", "prod", "sum", "var")},
}
"""The rule of each operation that has one, by its name. Those that go element by element need none."""
