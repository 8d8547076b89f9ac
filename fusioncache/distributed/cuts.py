"""How the values of a trace are cut among ranks, and what each operation does to a cut.

A rule computes a rank's part of a result from the parts of its arguments, or says that there is none. Linear layers and
embeddings are cut as column layers, row layers, and tables of which each rank has some rows.
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
    """A model cannot be shared by ranks in the way that was asked for. Says which layer, and why."""


@dataclass(frozen=True, slots=True)
class Cut:
    """How a tensor is cut: in equal parts along one dimension, of which each rank has its own, in their order.

    Attributes:
        dim: the dimension, from 0 on.
        layer: the name of the layer by which it came about, for people.
        of_rows: whether it is the residual stream that is cut, along its sequence, rather than a layer's features.
        is_gathered: of a weight, whether each rank is to have all that its layer gives.
    """

    dim: int
    layer: str
    of_rows: bool = False
    is_gathered: bool = False

    def moved(self, dim: int) -> Cut:
        """Returns the same cut along another dimension."""
        return replace(self, dim=dim)


def take_part(shape: Sequence[int], dim: int, ranks: int) -> Shape:
    """Returns the shape of one rank's part of a tensor.

    Args:
        shape: of the whole tensor.
        dim: along which it is cut.
        ranks: how many there are; they divide that dimension.
    """
    assert shape[dim] % ranks == 0
    return (*shape[:dim], shape[dim] // ranks, *shape[dim + 1 :])


def follow_reshape(old: Sequence[int], new: Sequence[int], dim: int, ranks: int) -> int | None:
    """Returns the dimension along which a tensor is cut once it has another shape; None if it is along none.

    Of each element the parts go by its place in all dimensions from the cut one on. So the new dimension has to begin
    where that one does, and the ranks have to divide it.

    Args:
        old: the shape, of the whole tensor.
        new: the other shape, of the whole tensor, with as many elements.
        dim: along which it is cut.
        ranks: how many there are.
    """
    before = _sizes_before(old)[dim]
    begins = (place for place, size in enumerate(_sizes_before(new)) if size == before)
    return next((place for place in begins if new[place] >= ranks and new[place] % ranks == 0), None)


def _sizes_before(shape: Sequence[int]) -> Sequence[int]:
    """Returns for each dimension how many elements those in front of it have together."""
    return list(accumulate(shape[:-1], mul, initial=1)) if shape else []


def align_right(dim: int, dims: int, others: int) -> int:
    """Returns which dimension of a tensor is the same as one of another, where both broadcast.

    Args:
        dim: the dimension of the other one.
        dims: how many that one has.
        others: how many the tensor has. What is returned is negative if it lacks this dimension.
    """
    return dim + others - dims


class CutValues:
    """What is known of a trace's values, while it is gone through. They go by their names in the whole trace.

    Args:
        group: the process group whose ranks share the model.
        cuts: of the parameters that are cut.
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
        """Returns how a value is cut; None if it is whole, or no tensor."""
        return self._cuts.get(getattr(value, "name", ""))

    def now(self, value: Any) -> Any:
        """Returns what stands for a value in the new trace: a part of it, where it is cut."""
        return self._now.get(getattr(value, "name", ""), value)

    def give(self, value: Any, new: Any, cut: Cut | None) -> None:
        """Notes what stands for a value in the new trace.

        Raises:
            AssertionError: if it has another shape than the part that it should be. This is an error of ours.
        """
        expected = tuple(value.shape) if cut is None else take_part(value.shape, cut.dim, self.ranks)
        assert tuple(new.shape) == expected, f"{value.name}: {tuple(new.shape)} is not {expected}"
        # Such as that it was made where no gradient is wanted.
        new.tags.update(value.tags)
        self._now[value.name] = new
        if cut is not None:
            self._cuts[value.name] = cut

    def compute(self, symbol: Any, now: Mapping[str, Any], cut: Cut | None) -> bool:
        """Does what a bound symbol does, with other values; returns whether the result is as expected.

        Args:
            symbol: gives one tensor.
            now: what stands for each value that it takes, by name.
            cut: how its result is cut.
        """
        (given,) = symbol.flat_proxy_outs
        args, kwargs = tree_map(lambda value: now.get(getattr(value, "name", ""), value), (symbol.args, symbol.kwargs))
        trace = get_tracectx()
        scope: list[Any] = []
        expected = tuple(given.shape) if cut is None else take_part(given.shape, cut.dim, self.ranks)
        depth = len(trace.scopes)
        trace.push_scope(scope)
        try:
            new = symbol.sym(*args, **kwargs)
        except (RuntimeError, ValueError, NotImplementedError):  # it names sizes of the whole
            new = None
        finally:
            del trace.scopes[depth:]  # what raised has left the scopes of its parts
        if new is None or tuple(new.shape) != expected:
            return False
        trace.scopes[-1].extend(scope)
        self.give(given, new, cut)
        return True

    def train(self, taken: Iterable[Any], given: Iterable[Any]) -> None:
        """Notes that what was made of these has a gradient if one of them has."""
        if any(value.name in self._trained for value in taken):
            self._trained.update(value.name for value in given)

    def starts(self, inputs: Iterable[Any]) -> None:
        """Notes which inputs of the trace have gradients, and takes parts in the place of those that are cut."""
        for value in inputs:
            if getattr(value, "requires_grad", False):
                self._trained.add(value.name)
            cut = self.cut_of(value)
            if cut is not None:
                # A name is taken once in a trace: here one proxy takes the place of another.
                with tracectx(TraceCtx()):
                    self._now[value.name] = value.replace(shape=take_part(value.shape, cut.dim, self.ranks))

    def enter(self, value: Any) -> Any:
        """Returns a whole value for something that computes a part: ranks add up its gradient."""
        if value.name not in self._trained:
            return self.now(value)
        return self._exchange("copy_to_ranks", value, 0)

    def own_part(self, value: Any, dim: int) -> Any:
        """Returns this rank's part of a whole value."""
        return self._exchange("take_own_part", value, dim)

    def fit(self, value: Any, dim: int, dims: int) -> Any:
        """Returns the operand with which this rank computes its part of a result.

        Args:
            value: a tensor, which broadcasts to the result; or a number.
            dim: along which the result is cut.
            dims: how many dimensions the result has.
        """
        if self.cut_of(value) or not hasattr(value, "ndim"):
            return self.now(value)
        own = align_right(dim, dims, value.ndim)
        return self.enter(value) if own < 0 or value.shape[own] == 1 else self.own_part(value, own)

    def gather(self, value: Any, *, partial: bool) -> Any:
        """Returns all of a value that is cut.

        Args:
            value: it.
            partial: whether it is for something that computes a part, so that ranks have summands of its gradient.
        """
        cut = self.cut_of(value)
        assert cut is not None
        return self._exchange("gather_for_parts" if partial else "gather_parts", value, cut.dim)

    def _exchange(self, name: str, value: Any, dim: int) -> Any:
        key = name, value.name, dim
        if key not in self._entered:
            self._entered[key] = rank_symbol(name)(self.now(value), self.group, dim)
        return self._entered[key]


def cut_linear(values: CutValues, symbol: Any) -> bool:
    """Computes a part of a linear layer's result, or all of it.

    Raises:
        CutError: if layers are cut so that one does not fit what comes before it.
    """
    cut = values.cut_of(symbol.args[1])
    if cut is None:
        return _apply_to_rows(values, symbol)
    if cut.dim == 0:
        return _apply_column(values, symbol, cut)
    return _apply_row(values, symbol, cut)


def _apply_to_rows(values: CutValues, symbol: Any) -> bool:
    """Applies a whole layer to some of the rows."""
    taken, weight, bias = symbol.args
    cut = values.cut_of(taken)
    if cut is None or cut.dim == taken.ndim - 1:
        return False
    now = {taken.name: values.now(taken)} | {one.name: values.enter(one) for one in (weight, bias) if one is not None}
    return values.compute(symbol, now, cut)


def _apply_column(values: CutValues, symbol: Any, cut: Cut) -> bool:
    """Gives each rank some features of the result; all of them to each, where the layer is a gathered one."""
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
    own = values.now(bias) if bias is None or values.cut_of(bias) else values.own_part(bias, 0)
    part = symbol.sym(whole, values.now(weight), own)
    if cut.is_gathered:
        values.give(given, rank_symbol("gather_parts")(part, values.group, given.ndim - 1), None)
    else:
        values.give(given, part, Cut(given.ndim - 1, cut.layer))
    return True


def _apply_row(values: CutValues, symbol: Any, cut: Cut) -> bool:
    """Adds up over ranks what each makes of the features that it has; adds the bias once."""
    taken, weight, bias = symbol.args
    (given,) = symbol.flat_proxy_outs
    before = values.cut_of(taken)
    if before is None or before.dim != taken.ndim - 1:
        why = "is whole on each rank" if before is None else f"is cut along dimension {before.dim} by {before.layer}"
        raise CutError(
            f"{cut.layer} is a row layer, and what it takes {why}: its features have to be those of column layers"
        )
    result, found = _add_up(values, symbol.sym(values.now(taken), values.now(weight), None), cut.layer)
    if bias is not None:
        result = ltorch.add(result, values.enter(bias) if found else values.now(bias))
    values.give(given, result, found)
    return True


def _add_up(values: CutValues, partial: Any, layer: str) -> tuple[Any, Cut | None]:
    """Returns the sum over ranks, and how it is cut: along the sequence if that was asked for and ranks divide it."""
    rows = partial.ndim - 2
    if values.of_rows and rows >= 0 and partial.shape[rows] % values.ranks == 0:
        return rank_symbol("sum_into_parts")(partial, values.group, rows), Cut(rows, layer, of_rows=True)
    return rank_symbol("sum_over_ranks")(partial, values.group, 0), None


def cut_embedding(values: CutValues, symbol: Any) -> bool:
    """Looks up what is in this rank's part of a table, takes zeros for the rest, and adds up over ranks."""
    tokens, table, padding, norm, *_ = symbol.args
    cut = values.cut_of(table)
    if cut is None or cut.dim != 0 or values.cut_of(tokens) or padding is not None or norm is not None:
        return False
    (given,) = symbol.flat_proxy_outs
    part = values.now(table)
    place = ltorch.sub(
        values.now(tokens), ltorch.mul(rank_operator()(values.group, tokens.device.device_str()), part.shape[0])
    )
    elsewhere = ltorch.logical_or(ltorch.lt(place, 0), ltorch.ge(place, part.shape[0]))
    found = ltorch.embedding(ltorch.masked_fill(place, elsewhere, 0), part)
    found = ltorch.masked_fill(found, ltorch.unsqueeze(elsewhere, -1), 0.0)
    values.give(given, *_add_up(values, found, cut.layer))
    return True


Rule = Callable[[CutValues, Any], bool]
"""Takes a bound symbol with at least one cut operand; returns whether it wrote what this rank does."""
Moved = tuple[int, tuple[Any, ...]] | None
Move = Callable[[Any, int, int], Moved]
"""Takes a bound symbol, along which dimension its tensor is cut and the number of ranks. Returns along which one its
result is, and its other arguments for a part; None if that is not cut along one."""


def operation_name(symbol: Any) -> str:
    """Returns what an operation is called here, such as ``prims.add``."""
    return symbol_name(symbol.sym) or str(symbol.sym.id)


def is_elementwise(symbol: Any) -> bool:
    """True if an operation gives one tensor, each element of which is of its operands' at the same place."""
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
    parts = values.fit(left, dim, given.ndim), values.enter(right) if of_rows else values.fit(right, dim, given.ndim)
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
        now[mask.name] = values.fit(mask, dim, query.ndim)
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
