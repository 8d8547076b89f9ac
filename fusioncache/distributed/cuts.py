"""The cuts of a trace's values among ranks, and the rules that propagate cuts through operations.

A rule computes a rank's part of a result from the parts of its arguments, or returns False if that is impossible.
Linear layers are cut as column or row layers, and embeddings by rows of their tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import mul
from typing import Any

from fusioncache.backends.bound_symbols import leaves_of, symbol_name
from fusioncache.distributed.rank_symbols import rank_operator, rank_symbol
from fusioncache.ir.ops import op_traits
from fusioncache.thunder_adapter.api import TraceCtx, get_tracectx, ltorch, tracectx, tree_map

Shape = tuple[int, ...]


class CutError(ValueError):
    """A model cannot be cut among ranks in the requested way. The message names the layer and the reason."""


@dataclass(frozen=True, slots=True)
class Cut:
    """How a tensor is cut: into equal parts along one dimension, one for each rank, in the order of ranks.

    Attributes:
        dim: the dimension, from 0 on.
        layer: the name of the layer that caused the cut, for people.
        of_rows: whether the residual stream is cut along its sequence, rather than a layer's features.
        is_gathered: of a weight, whether its layer's result is gathered on each rank.
    """

    dim: int
    layer: str
    of_rows: bool = False
    is_gathered: bool = False


def take_part(shape: Sequence[int], dim: int, ranks: int) -> Shape:
    """Returns the shape of one rank's part of a tensor.

    Args:
        shape: of the whole tensor.
        dim: along which it is cut.
        ranks: the number of ranks, which divides that dimension.
    """
    assert shape[dim] % ranks == 0
    return (*shape[:dim], shape[dim] // ranks, *shape[dim + 1 :])


def follow_reshape(old: Sequence[int], new: Sequence[int], dim: int, ranks: int) -> int | None:
    """Returns the dimension along which a tensor is cut after a reshape, or None.

    The parts stay the same if the sizes in front of the new dimension have the same product as those in front of the
    old one, and the number of ranks divides the new dimension.

    Args:
        old: the shape of the whole tensor.
        new: its new shape, with as many elements.
        dim: along which it is cut.
        ranks: the number of ranks.
    """
    before = _sizes_before(old)[dim]
    begins = (place for place, size in enumerate(_sizes_before(new)) if size == before)
    return next((place for place in begins if new[place] >= ranks and new[place] % ranks == 0), None)


def _sizes_before(shape: Sequence[int]) -> Sequence[int]:
    """Returns for each dimension the product of the sizes in front of it."""
    return list(accumulate(shape[:-1], mul, initial=1)) if shape else []


class CutValues:
    """The cuts and replacements of a trace's values while it is visited, by their names in the original trace.

    Args:
        group: the process group whose ranks share the model.
        cuts: of the cut parameters.
        of_rows: whether row layers leave the residual stream cut along its sequence.
    """

    def __init__(self, group: Any, cuts: Mapping[str, Cut], *, of_rows: bool):
        self.group, self.ranks = group, int(group.size())
        self.of_rows = of_rows
        self._cuts = dict(cuts)
        self._now: dict[str, Any] = {}
        self._trained: set[str] = set()
        self._entered: dict[tuple[str, str, int], Any] = {}

    def cut_of(self, value: Any) -> Cut | None:
        """Returns the cut of a value; None if it is whole or not a tensor."""
        return self._cuts.get(getattr(value, "name", ""))

    def cut_of_result(self, operands: Iterable[Any], dims: int) -> Cut | None:
        """Returns the cut that operands give to a result they broadcast to; None unless all cut ones give the same.

        Args:
            operands: of an operation.
            dims: the number of dimensions of its result.
        """
        # Tensors broadcast from their last dimensions.
        cuts = [replace(cut, dim=cut.dim + dims - one.ndim) for one in operands if (cut := self.cut_of(one))]
        return cuts[0] if len({cut.dim for cut in cuts}) == 1 else None

    def new(self, value: Any) -> Any:
        """Returns what replaces a value in the new trace: a part of it if it is cut."""
        return self._now.get(getattr(value, "name", ""), value)

    def replace(self, value: Any, new: Any, cut: Cut | None) -> None:
        """Records the replacement of a value in the new trace.

        Raises:
            AssertionError: if its shape is not that of the expected part, which is a bug of fusioncache.
        """
        expected = tuple(value.shape) if cut is None else take_part(value.shape, cut.dim, self.ranks)
        assert tuple(new.shape) == expected, f"{value.name}: {tuple(new.shape)} is not {expected}"
        # Such as the tag of a value that was made without gradients.
        new.tags.update(value.tags)
        self._now[value.name] = new
        if cut is not None:
            self._cuts[value.name] = cut

    def compute(self, symbol: Any, args: Mapping[str, Any], cut: Cut | None) -> bool:
        """Calls a bound symbol's operation with other arguments. True if the result has the expected shape.

        Args:
            symbol: a bound symbol with one result.
            args: the replacement of each argument, by name.
            cut: of its result.
        """
        (given,) = symbol.flat_proxy_outs
        changed, kwargs = tree_map(lambda one: args.get(getattr(one, "name", ""), one), (symbol.args, symbol.kwargs))
        trace = get_tracectx()
        scope: list[Any] = []
        expected = tuple(given.shape) if cut is None else take_part(given.shape, cut.dim, self.ranks)
        depth = len(trace.scopes)
        trace.push_scope(scope)
        try:
            new = symbol.sym(*changed, **kwargs)
        except (RuntimeError, ValueError, NotImplementedError):  # its arguments contain sizes of the whole
            new = None
        finally:
            del trace.scopes[depth:]  # after an exception, scopes of its subsymbols are left as well
        if new is None or tuple(new.shape) != expected:
            return False
        trace.scopes[-1].extend(scope)
        self.replace(given, new, cut)
        return True

    def propagate_gradients(self, taken: Iterable[Any], given: Iterable[Any]) -> None:
        """Records that the results have gradients if one of the arguments has."""
        if any(value.name in self._trained for value in taken):
            self._trained.update(value.name for value in given)

    def mark_inputs(self, inputs: Iterable[Any]) -> None:
        """Records which inputs of the trace have gradients, and replaces cut ones by parts."""
        for value in inputs:
            if getattr(value, "requires_grad", False):
                self._trained.add(value.name)
            cut = self.cut_of(value)
            if cut is not None:
                # In another trace, because a name is unique in a trace and the new proxy reuses one.
                with tracectx(TraceCtx()):
                    self._now[value.name] = value.replace(shape=take_part(value.shape, cut.dim, self.ranks))

    def enter(self, value: Any) -> Any:
        """Returns a whole value for an operation that computes a part. Its gradient is summed over ranks."""
        if value.name not in self._trained:
            return self.new(value)
        return self._exchange("copy_to_ranks", value, 0)

    def own_part(self, value: Any, dim: int) -> Any:
        """Returns this rank's part of a whole value."""
        return self._exchange("take_own_part", value, dim)

    def fit(self, value: Any, dim: int, dims: int) -> Any:
        """Returns the operand with which this rank computes its part of a result.

        Args:
            value: a tensor, which broadcasts to the result; or a number.
            dim: along which the result is cut.
            dims: the number of dimensions of the result.
        """
        if self.cut_of(value) or not hasattr(value, "ndim"):
            return self.new(value)
        own = dim + value.ndim - dims  # negative if the value lacks this dimension
        return self.enter(value) if own < 0 or value.shape[own] == 1 else self.own_part(value, own)

    def gather(self, value: Any, *, partial: bool) -> Any:
        """Returns the whole of a cut value.

        Args:
            value: the cut value.
            partial: whether its user computes a part, so that each rank has a summand of its gradient.
        """
        cut = self.cut_of(value)
        assert cut is not None
        return self._exchange("gather_for_parts" if partial else "gather_parts", value, cut.dim)

    def _exchange(self, name: str, value: Any, dim: int) -> Any:
        key = name, value.name, dim
        if key not in self._entered:
            self._entered[key] = rank_symbol(name)(self.new(value), self.group, dim)
        return self._entered[key]


def cut_linear(values: CutValues, symbol: Any) -> bool:
    """Rule of linear layers. Computes a part of the result, or all of it.

    Raises:
        CutError: if the layer's role does not fit the cut of its input.
    """
    cut = values.cut_of(symbol.args[1])
    if cut is None:
        return _apply_to_rows(values, symbol)
    if cut.dim == 0:
        return _apply_column(values, symbol, cut)
    return _apply_row(values, symbol, cut)


def _apply_to_rows(values: CutValues, symbol: Any) -> bool:
    """Applies a whole layer to this rank's rows of its input."""
    taken, weight, bias = symbol.args
    cut = values.cut_of(taken)
    if cut is None or cut.dim == taken.ndim - 1:
        return False
    args = {taken.name: values.new(taken)} | {one.name: values.enter(one) for one in (weight, bias) if one is not None}
    return values.compute(symbol, args, cut)


def _apply_column(values: CutValues, symbol: Any, cut: Cut) -> bool:
    """Computes this rank's output features of a column layer, and gathers them if it is a gathered layer."""
    taken, weight, bias = symbol.args
    (given,) = symbol.flat_proxy_outs
    before = values.cut_of(taken)
    if before is None:
        whole = values.enter(taken)
    elif before.of_rows:
        whole = values.gather(taken, partial=True)
    else:
        raise CutError(
            f"{cut.layer} takes what {before.layer} gives, of which each rank has a part: it must be a row layer"
        )
    own = values.new(bias) if bias is None or values.cut_of(bias) else values.own_part(bias, 0)
    part = symbol.sym(whole, values.new(weight), own)
    if cut.is_gathered:
        values.replace(given, rank_symbol("gather_parts")(part, values.group, given.ndim - 1), None)
    else:
        values.replace(given, part, Cut(given.ndim - 1, cut.layer))
    return True


def _apply_row(values: CutValues, symbol: Any, cut: Cut) -> bool:
    """Computes a row layer: sums over ranks the products of each rank's input features, and adds the bias once."""
    taken, weight, bias = symbol.args
    (given,) = symbol.flat_proxy_outs
    before = values.cut_of(taken)
    if before is None or before.dim != taken.ndim - 1:
        why = "is whole on each rank" if before is None else f"is cut along dimension {before.dim} by {before.layer}"
        raise CutError(
            f"{cut.layer} is a row layer, and what it takes {why}: its features have to be those of column layers"
        )
    result, found = _add_up(values, symbol.sym(values.new(taken), values.new(weight), None), cut.layer)
    if bias is not None:
        result = ltorch.add(result, values.enter(bias) if found else values.new(bias))
    values.replace(given, result, found)
    return True


def _add_up(values: CutValues, partial: Any, layer: str) -> tuple[Any, Cut | None]:
    """Returns the sum over ranks and its cut: along the sequence if ``of_rows`` is set and ranks divide it."""
    rows = partial.ndim - 2
    if values.of_rows and rows >= 0 and partial.shape[rows] % values.ranks == 0:
        return rank_symbol("sum_into_parts")(partial, values.group, rows), Cut(rows, layer, of_rows=True)
    return rank_symbol("sum_over_ranks")(partial, values.group, 0), None


def cut_embedding(values: CutValues, symbol: Any) -> bool:
    """Rule of embeddings. Looks up this rank's part of the table, takes zeros for other tokens, and sums over ranks."""
    tokens, table, padding, norm, *_ = symbol.args
    cut = values.cut_of(table)
    if cut is None or cut.dim != 0 or values.cut_of(tokens) or padding is not None or norm is not None:
        return False
    (given,) = symbol.flat_proxy_outs
    part = values.new(table)
    place = ltorch.sub(
        values.new(tokens), ltorch.mul(rank_operator()(values.group, tokens.device.device_str()), part.shape[0])
    )
    elsewhere = ltorch.logical_or(ltorch.lt(place, 0), ltorch.ge(place, part.shape[0]))
    found = ltorch.embedding(ltorch.masked_fill(place, elsewhere, 0), part)
    found = ltorch.masked_fill(found, ltorch.unsqueeze(elsewhere, -1), 0.0)
    values.replace(given, *_add_up(values, found, cut.layer))
    return True


Rule = Callable[[CutValues, Any], bool]
"""Takes a bound symbol with at least one cut operand; returns True if it wrote this rank's computation."""
Moved = tuple[int, tuple[Any, ...]] | None
Move = Callable[[Any, int, int], Moved]
"""Takes a bound symbol, the dimension along which its tensor is cut, and the number of ranks. Returns the dimension
along which its result is cut, and its other arguments for a part; None if the result cannot be cut."""


def operation_name(symbol: Any) -> str:
    """Returns the name of an operation in ``RULES``, such as ``prims.add``."""
    return symbol_name(symbol.sym) or str(symbol.sym.id)


def is_elementwise(symbol: Any) -> bool:
    """True if an operation has one result, each element of which depends on operands' elements at its index only."""
    return len(symbol.flat_proxy_outs) == 1 and all(_is_elementwise_leaf(leaf) for leaf in leaves_of(symbol))


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
    """Returns the rule of an operation on one tensor, whose other arguments ``move`` adapts to a part."""

    def follow(values: CutValues, symbol: Any) -> bool:
        (given,), tensor = symbol.flat_proxy_outs, symbol.args[0]
        cut = values.cut_of(tensor)
        moved = None if cut is None else move(symbol, cut.dim, values.ranks)
        if cut is None or moved is None:
            return False
        dim, args = moved
        values.replace(given, symbol.sym(values.new(tensor), *args, **symbol.kwargs), replace(cut, dim=dim))
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
    # A list, because Thunder's translator for nvFuser concatenates lists.
    return dim, (start, [*take_part(end, dim, ranks)], *strides)


def _concatenate(values: CutValues, symbol: Any) -> bool:
    tensors, along = symbol.args
    (given,) = symbol.flat_proxy_outs
    cut = values.cut_of_result(tensors, given.ndim)
    if cut is None or along % given.ndim == cut.dim:
        return False
    parts = [values.new(one) if values.cut_of(one) else values.own_part(one, cut.dim) for one in tensors]
    values.replace(given, symbol.sym(parts, along), cut)
    return True


def _multiply(values: CutValues, symbol: Any) -> bool:
    """Rule of matrix products: a batch dimension may be cut, or the rows of the left matrices."""
    left, right = symbol.args
    (given,) = symbol.flat_proxy_outs
    cut, dims = values.cut_of_result((left, right), given.ndim), given.ndim
    if cut is None or min(left.ndim, right.ndim) < 2:
        return False
    of_rows = cut.dim == dims - 2 and values.cut_of(right) is None
    if cut.dim >= dims - 2 and not of_rows:
        return False
    parts = values.fit(left, cut.dim, dims), values.enter(right) if of_rows else values.fit(right, cut.dim, dims)
    values.replace(given, symbol.sym(*parts), cut)
    return True


def _attend(values: CutValues, symbol: Any) -> bool:
    """Rule of attention: heads or batch may be cut. With dropout the subsymbols are cut instead."""
    query, key, value, mask, dropout, *_ = symbol.args
    cut, *others = (values.cut_of(one) for one in (query, key, value))
    if cut is None or any(other is None or other.dim != cut.dim for other in others) or dropout or values.cut_of(mask):
        return False
    dim = cut.dim
    if dim >= query.ndim - 2 or not query.ndim == key.ndim == value.ndim:
        return False
    args = {one.name: values.new(one) for one in (query, key, value)}
    if mask is not None:
        args[mask.name] = values.fit(mask, dim, query.ndim)
    return values.compute(symbol, args, cut)


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
"""The rules by name of the operation. Elementwise operations need none."""
