"""Removes views that change nothing, and repeated views. Left is one of Thunder's programs, right the result.

    t5 = reshape(t4, (-1, 8))                       t5 = reshape(t4, (-1, 8))
    t6 = matmul(t5, w)                              t6 = matmul(t5, w)
    t7 = reshape(t4, (-1, 8))           twice
    t8 = permute(t7, (1, 0))                        t8 = permute(t5, (1, 0))
    t9 = expand(t8, [8, 16])            nothing     users of t9 take t8
    t10 = contiguous(t6)                for attention
    t11 = cudnn_attend(t10, ...)                    t11 = cudnn_attend(t6, ...)

No value changes, and none that a program returns or saves becomes another tensor. All of it is done only if nothing in
the program writes into memory: then two views cannot be distinguished from one.

Code outside can distinguish the values that a program returns or saves: it may check whether one is another tensor, a
leaf of autograd's graph, or detached. So no value replaces one that leaves. Some operations return their argument
itself, if they have nothing to do:

    t1 = permute(t0, (1, 0))                    is x again
    t2 = contiguous(t1)                         so this is t1 itself, which is a view of x, and x if t1 is left out
    return t2

Results of attention are saved once: in the form that is multiplied, of which backward takes a view.

    (out, ...) = flash_attention(q, k, v)
    t1 = permute(out, (0, 2, 1, 3))
    t2 = reshape(t1, (2, 64, 128))            a copy where out has its heads first
    t3 = linear(t2, weight)
    return ..., saved: (..., out, t2)         now: (..., t2)

    t4 = reshape(t2, (2, 64, 4, 32))          new in backward
    out = permute(t4, (0, 2, 1, 3))
    (dq, dk, dv) = flash_backward(..., out, ...)

Both have the same numbers, and torch's kernel for backward needs the layout of the copy: it made another copy itself.
So a layer saves one result less, and backward makes no copy. The layout of gradients does not change: each gradient
has that of its query, key or value.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fusioncache.accelerators.attention import NAME as ATTENTION
from fusioncache.backends.bound_symbols import leaves_of, symbol_name, written_values
from fusioncache.ir.ops import op_traits
from fusioncache.thunder_adapter.api import PrimIDs, Proxy, TensorProxy, torchex, tracectx, tree_flatten, variableify
from fusioncache.transform.rewrite import SavedSwap, deletes, find_saved

NEW_VIEWS = frozenset({"permute", "transpose", "unsqueeze", "squeeze", "expand", "torch_slice_prim_impl"})
"""Torch's views that return a new tensor each time, even if they change nothing."""
PRODUCTS = frozenset({"matmul", "linear"})
"""Torch's products, which return a new tensor each time."""


@dataclass(frozen=True, slots=True)
class EscapingValues:
    """The values of a program that leave it, by name.

    Attributes:
        held: the values that it returns or saves.
        passed: the values that may leave as well, as an operation may return its argument itself.
        inner: the values that the program makes, and that are not a tensor that it was given, returns or saves.
    """

    held: frozenset[str]
    passed: frozenset[str]
    inner: frozenset[str]

    @classmethod
    def of(cls, symbols: Sequence[Any]) -> EscapingValues:
        """Returns the values that leave a program with these bound symbols."""
        returns = (symbol for symbol in symbols if symbol.sym.id is PrimIDs.RETURN)
        held = frozenset(proxy.name for symbol in returns for proxy in symbol.flat_proxy_args)
        passed = _find_passed(symbols, held)
        return cls(held, passed, _find_inner(symbols, held | passed))

    def can_replace(self, other: Any, value: Any) -> bool:
        """True if a value may replace another one that is equal, without code outside noticing."""
        return other.name not in self.held and (other.name not in self.passed or value.name in self.inner)


def _find_passed(symbols: Sequence[Any], held: frozenset[str]) -> frozenset[str]:
    found = set(held)
    for symbol in reversed(symbols):
        if any(proxy.name in found for proxy in symbol.flat_proxy_outs) and not _gives_another(symbol):
            found |= {proxy.name for proxy in symbol.flat_proxy_args}
    return frozenset(found - held)


def _find_inner(symbols: Sequence[Any], outer: frozenset[str]) -> frozenset[str]:
    inner: set[str] = set()
    for symbol in symbols:
        given = {proxy.name for proxy in symbol.flat_proxy_args}
        if given and (given <= inner or _gives_another(symbol)):
            inner |= {proxy.name for proxy in symbol.flat_proxy_outs} - outer
    return frozenset(inner)


def _gives_another(symbol: Any) -> bool:
    """True if an operation never returns one of its arguments itself."""
    if symbol.sym.is_fusion or is_torch_op(symbol, NEW_VIEWS | PRODUCTS):
        return True
    given = {proxy.name for proxy in symbol.flat_proxy_outs}
    makers = [leaf for leaf in leaves_of(symbol) if given & {proxy.name for proxy in leaf.flat_proxy_outs}]
    return bool(makers) and all(op_traits(symbol_name(leaf.sym) or "").allocates for leaf in makers)


def list_computed_with(symbol: Any) -> list[Any]:
    """Returns the values that a bound symbol computes with or returns, except those that it only saves for backward."""
    saves = symbol.sym.id is PrimIDs.RETURN and len(symbol.args) == 2 and type(symbol.args[0]) is dict
    if not saves:
        return list(symbol.flat_proxy_args)
    results, _saved = symbol.args
    return [leaf for leaf in tree_flatten(results)[0] if isinstance(leaf, Proxy)]


TWICE, NOTHING = "repeated views", "views that change nothing"
FOR_ATTENTION = "copies that attention does not need"

FAR = 32
"""How many statements may lie between two reshapes that become one. A reshape may be a copy, which lives that long."""

RESHAPES = frozenset({"reshape", "torch_prims_reshape_impl"})
_PERMUTE = "permute"
_PERMUTATIONS = frozenset({_PERMUTE, "transpose"})
_SUBSCRIPT = "__getitem__"
_SHAPED = RESHAPES | {"expand", _SUBSCRIPT}
_VIEWS = RESHAPES | NEW_VIEWS
_SKIPPED = _VIEWS | {_SUBSCRIPT}
_WHOLE = ((None, None), (0, None), (None, 1), (0, 1))
"""Starts and steps of slices that have all elements if they have as many as their source."""
_MADE = frozenset({"arange"})
"""Operations that make the same values each time."""
_COPIES = frozenset({"contiguous"})


@dataclass(frozen=True, slots=True)
class SimplifiedProgram:
    """A program without redundant operations.

    Attributes:
        symbols: its bound symbols.
        taken: how many operations were removed, by their kind.
    """

    symbols: tuple[Any, ...]
    taken: Mapping[str, int]


def simplify_views(symbols: Iterable[Any], *, writes: bool) -> SimplifiedProgram:
    """Removes redundant views from a program's bound symbols.

    Args:
        symbols: the bound symbols.
        writes: whether the program writes into memory. Then only views that are the same as their source are removed.
    """
    symbols, taken = list(symbols), Counter[str]()
    escaping = EscapingValues.of(symbols)
    for simplify in (_skip_copies_for_attention, _skip) if writes else (_skip_copies_for_attention, _merge, _skip):
        symbols = list(simplify(symbols, escaping, taken))
    return SimplifiedProgram(tuple(symbols), taken)


def is_torch_tensor_op(symbol: Any, names: frozenset[str]) -> bool:
    """True if ``is_torch_op`` is, and the operation returns one tensor."""
    return is_torch_op(symbol, names) and type(symbol.output) is TensorProxy


def is_torch_op(symbol: Any, names: frozenset[str]) -> bool:
    """True if a bound symbol calls an operation of Thunder's executor for torch with one of these names."""
    executor = symbol.sym.executor
    return executor is not None and executor.name == "torch" and symbol.sym.name in names


def _merge(symbols: Iterable[Any], escaping: EscapingValues, taken: Counter[str]) -> Iterator[Any]:
    """Removes views and ranges that were computed before (common subexpression elimination)."""
    substitution = Substitution()
    known: dict[Any, tuple[int, Any]] = {}
    for place, original in enumerate(symbols):
        symbol = substitution.apply(original)
        if not is_torch_tensor_op(symbol, _VIEWS | _MADE):
            yield symbol
            continue
        name = "reshape" if symbol.sym.name in RESHAPES else symbol.sym.name
        key = name, _describe(symbol.args), _describe(sorted(symbol.kwargs.items()))
        before, first = known.get(key, (0, None))
        is_near = name != "reshape" or place - before <= FAR
        if first is not None and is_near and escaping.can_replace(symbol.output, first):
            taken[TWICE] += 1
            substitution.add(symbol.output, first)
        else:
            known[key] = place, symbol.output
            yield symbol


def _describe(value: Any) -> Any:
    """Returns a key that is equal only for the same values: numbers of different types differ."""
    if isinstance(value, Proxy):
        return Proxy, value.name
    if isinstance(value, (tuple, list)):
        return tuple, *map(_describe, value)
    return type(value), repr(value)


def _skip_copies_for_attention(symbols: Sequence[Any], escaping: EscapingValues, taken: Counter[str]) -> Iterator[Any]:
    """Passes a tensor itself to attention if its executor asked for a contiguous copy, and no region made it.

    The executor asks for it so that a region writes its results in that order. Attention accepts any order. A program
    that saves the copy saves a view then.
    """
    spared = _find_used_by_attention(symbols)
    for symbol in symbols:
        if not is_torch_tensor_op(symbol, _COPIES) or symbol.output.name not in spared:
            yield symbol
            continue
        taken[FOR_ATTENTION] += 1
        source = symbol.args[0]
        order = tuple(range(source.ndim))
        yield symbol.from_bsym(sym=torchex.permute, args=(source, order), kwargs={}, subsymbols=())


def _find_used_by_attention(symbols: Sequence[Any]) -> frozenset[str]:
    """Returns the names of the values that only fusioncache's attention uses, and that are no results.

    Nothing is written between the definition and the uses of one, so that the source of a copy is unchanged.
    """
    made: dict[str, int] = {}
    used: set[str] = set()
    others: set[str] = set()
    last_write = -1
    for place, symbol in enumerate(symbols):
        names = {proxy.name for proxy in list_computed_with(symbol)}
        if getattr(symbol.sym.executor, "name", None) != ATTENTION:
            others |= names
        else:
            used |= names
            others |= {name for name in names if made.get(name, -1) < last_write}
        if any(True for _ in written_values(symbol)):
            last_write = place
        made.update((proxy.name, place) for proxy in symbol.flat_proxy_outs)
    return frozenset(used - others)


def read_permutation(symbol: Any) -> tuple[int, ...] | None:
    """Returns the argument's dimension for each dimension of a permutation's result; None for another operation."""
    if not is_torch_tensor_op(symbol, _PERMUTATIONS):
        return None
    order = list(range(symbol.args[0].ndim))
    given = (*symbol.args[1:], *symbol.kwargs.values())
    if symbol.sym.name == _PERMUTE:
        return tuple(order[each] for each in given[0])
    one, other = given
    order[one], order[other] = order[other], order[one]
    return tuple(order)


def _skip(symbols: Sequence[Any], escaping: EscapingValues, taken: Counter[str]) -> Iterator[Any]:
    """Removes views that are the same as their source."""
    substitution = Substitution()
    for original in symbols:
        symbol = substitution.apply(original)
        is_whole = is_torch_tensor_op(symbol, _SKIPPED) and _changes_nothing(symbol)
        if is_whole and escaping.can_replace(symbol.output, symbol.args[0]):
            taken[NOTHING] += 1
            substitution.add(symbol.output, symbol.args[0])
        else:
            yield symbol


def _changes_nothing(symbol: Any) -> bool:
    source = symbol.args[0]
    if symbol.sym.name == _PERMUTE:
        return tuple(symbol.args[1]) == tuple(range(source.ndim))
    if symbol.sym.name == _SUBSCRIPT and not _starts_where_it_does(symbol.args[1]):
        return False
    return symbol.sym.name in _SHAPED and _has_shape(source, symbol.output)


def _starts_where_it_does(subscript: Any) -> bool:
    """True if a subscript leaves out elements only at the end of a dimension."""
    parts = subscript if isinstance(subscript, tuple) else (subscript,)
    slices = [part for part in parts if part is not Ellipsis]
    return all(type(each) is slice and (each.start, each.step) in _WHOLE for each in slices)


def _has_shape(one: Any, other: Any) -> bool:
    return one.ndim == other.ndim and tuple(one.shape) == tuple(other.shape)


def list_unchanging(symbols: Iterable[Any]) -> Iterator[Any]:
    """Yields the views that have the shape of their source."""
    for symbol in symbols:
        if is_torch_tensor_op(symbol, _SHAPED) and _has_shape(symbol.args[0], symbol.output):
            yield symbol


class Substitution:
    """A substitution of values by others."""

    def __init__(self) -> None:
        self._proxies: dict[Any, Any] = {}

    def add(self, old: Any, new: Any) -> None:
        """Replaces a value by another one from now on."""
        self._proxies[variableify(old)] = new

    def apply(self, symbol: Any) -> Any:
        """Returns a bound symbol with its arguments replaced."""
        if not any(variableify(proxy) in self._proxies for proxy in symbol.flat_proxy_args):
            return symbol
        return symbol.from_bsym_swap_proxies(self._proxies, skip_output=True)


RESULTS = "results of attention saved twice"
"""The name under which removed results are counted."""

_SWAPPED = (0, 2, 1, 3)
"""The permutation that puts each position before its heads. It is its own inverse."""
_COPY = "contiguous"
_JOINS = RESHAPES | {"flatten", "view", _COPY}


@dataclass(frozen=True, slots=True)
class SavedResults(SavedSwap):
    """The changes that a backward trace needs once its forward trace saves results of attention once.

    Attributes:
        joined: the value that each result is a view of, by the name of the result.
        results: the proxies of the results, by name.
    """

    joined: Mapping[str, Any]
    results: Mapping[str, Any]


def save_once(trace: Any) -> tuple[Any, SavedResults | None]:
    """Returns a forward trace that saves each result of attention once, and the changes for its backward trace.

    Args:
        trace: a final one that saves tensors for a backward trace. Without such a result it is returned with None.
    """
    saved = {proxy.name: proxy for proxy in find_saved(trace)}
    found = dict(find_saved_twice(trace.bound_symbols, saved))
    if not found:
        return trace, None
    remaining = {name: proxy for name, proxy in saved.items() if name not in found}
    remaining |= {joined.name: joined for joined in found.values()}
    results = SavedResults(tuple(saved), tuple(remaining.values()), found, {name: saved[name] for name in found})
    return results.save(trace, "Results of attention saved once by fusioncache"), results


def find_saved_twice(symbols: Sequence[Any], saved: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields the names of results that need not be saved, each with the saved value that has the same numbers.

    No code outside can write into that value, noticed by autograd or not: it is multiplied, and neither returned nor
    viewed. A program for several lengths records that sizes are compared here: see ``families.py``.
    """
    attentions = [symbol for symbol in symbols if _is_flash_attention(symbol)]
    if not attentions or any(True for symbol in symbols for _ in written_values(symbol)):
        return
    users = _find_users(symbols)
    for attention in attentions:
        result = attention.flat_proxy_outs[0]
        joined = _find_joined(result, users) if result.name in saved and _is_of_numbers(result) else None
        if joined is not None and all(is_torch_tensor_op(user, PRODUCTS) for user in users[joined.name]):
            yield result.name, joined


def _is_flash_attention(symbol: Any) -> bool:
    """True if a bound symbol is the forward pass of Thunder's flash attention."""
    from fusioncache.thunder_adapter.accelerator_api import sdpaex

    return symbol.sym.executor is sdpaex.sdpa_ex and symbol.sym.id == sdpaex.sdpfa_gradfwd.id


def _find_users(symbols: Iterable[Any]) -> Mapping[str, Sequence[Any]]:
    """Returns the symbols that compute with each value, or return it, by its name, without those that only save it."""
    users: defaultdict[str, list[Any]] = defaultdict(list)
    for symbol in symbols:
        if deletes(symbol):
            continue
        for name in {proxy.name for proxy in list_computed_with(symbol)}:
            users[name].append(symbol)
    return users


def _find_joined(result: Any, users: Mapping[str, Sequence[Any]]) -> Any:
    """Returns the value of a result with positions first and heads joined; None if the result has any other use."""
    swap = _find_only(users[result.name])
    if swap is None or read_permutation(swap) != _SWAPPED:
        return None
    value, is_joined = swap.output, False
    while (step := _find_only(users[value.name])) is not None and is_torch_tensor_op(step, _JOINS):
        value = step.output
        *_, heads, size = swap.output.shape
        is_joined = is_joined or step.sym.name == _COPY or bool(value.shape[-1] == heads * size)
    return value if is_joined else None


def _find_only(symbols: Sequence[Any]) -> Any:
    return symbols[0] if len(symbols) == 1 else None


def _is_of_numbers(result: Any) -> bool:
    return not any(isinstance(size, Proxy) for size in result.shape)


def view_results(trace: Any, results: SavedResults) -> Any:
    """Returns a backward trace that takes the values saved now, and views them where it uses results of attention.

    Raises:
        RuntimeError: if this is not the backward trace of that forward trace. Then it cannot run unchanged either.
    """
    change = partial(_insert_views, trace, results)
    return results.take(trace, change, "Results of attention viewed by fusioncache")


def _insert_views(trace: Any, results: SavedResults, symbols: Iterator[Any]) -> Iterator[Any]:
    viewed = set[str]()
    for symbol in symbols:
        if deletes(symbol):
            continue
        for proxy in symbol.flat_proxy_args:
            if proxy.name in results.joined and proxy.name not in viewed:
                viewed.add(proxy.name)
                yield from _view(trace, results.joined[proxy.name], results.results[proxy.name])
        yield symbol


def _view(trace: Any, joined: Any, result: Any) -> Iterator[Any]:
    """Yields the bound symbols that make a result of attention, with heads before positions, from the joined value."""
    shape = tuple(result.shape[dimension] for dimension in _SWAPPED)
    with tracectx(trace):
        positions_first = TensorProxy(like=result, shape=shape)
    yield torchex.reshape.bind(joined, shape, output=positions_first)
    yield torchex.permute.bind(positions_first, _SWAPPED, output=result)
