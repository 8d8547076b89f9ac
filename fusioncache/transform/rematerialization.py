"""Rematerialization whose backward reads no memory that user code may have overwritten since forward.

Thunder's rematerialization saves an input of a forward region if it is smaller than the values that backward needs of
the region, and recomputes these. If the input is a buffer, an argument or a result of the program, user code may write
into it between forward and backward: another forward that updates a running average, for instance. Eager PyTorch does
not save it, so that its gradient is right. Here such an input is saved only if backward reads it anyway. Parameters may
be saved, because PyTorch's optimizers write into them after backward.

    h = tanh(linear(x)) + buffer            forward region: takes buffer, gives h and sin(h * scale)
    d = cos(h * scale) * ...                backward region: Thunder saves linear(x) and buffer, this saves h
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from fusioncache.backends.bound_symbols import argument_names, leaves_of, symbol_name
from fusioncache.ir.ops import op_traits
from fusioncache.process.warning import logger
from fusioncache.thunder_adapter.api import PrimIDs, Proxy, TensorProxy, _compile_data, rematerialization, tree_flatten
from fusioncache.transform.passes import pick_ours

_OTHER_VIEWS = frozenset({"bitcast", "device_put", "imag", "real"})
"""Primitives without traits that may return their operand or a view of it."""
_FIND_CUT, _RESULTS = "find_cut", "fw_flat_out"


def make_safe_rematerialize(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns a rematerialization that is safe for functions with fusioncache's transform, and Thunder's for others."""

    def rematerialize_ours(trace: Any) -> Any:
        data, _ = _compile_data.get()
        transforms = getattr(data, "transforms", None) or ()
        return rematerialize(trace) if pick_ours(transforms) else original(trace)

    return rematerialize_ours


def rematerialize(trace: Any) -> Any:
    """Returns the trace after Thunder's ``rematerialize``, with cuts that add no unsafe reads to backward.

    Args:
        trace: a fused joint trace, before forward and backward are split. Other traces are left to Thunder.
    """
    own = rematerialization.rematerialize
    reads = _read_joint_trace(trace)
    if reads is None or not reads.unsafe:
        return own(trace)
    if not isinstance(own, FunctionType) or _FIND_CUT not in own.__code__.co_names:
        logger.info("nothing is rematerialized: this Thunder finds its cuts in another way")
        return trace
    find_cut = rematerialization.find_cut

    def find_safe_cut(external: Iterable[Any], producer: Any, consumer: Any) -> Any:
        if reads.is_backward(consumer):
            # A cut lies at or below a producer's inputs, and preferably there. So the cut is also given the values
            # computed from an unsafe input.
            given = [
                proxy
                for symbol in producer.subsymbols
                if not reads.unsafe.isdisjoint(argument_names(symbol))
                for proxy in symbol.flat_proxy_outs
            ]
            producer = producer.from_bsym(args=(*producer.args, *given))
        return find_cut(external, producer, consumer)

    # The module's function, which looks up the cut in these globals.
    guarded = FunctionType(own.__code__, {**vars(rematerialization), _FIND_CUT: find_safe_cut}, own.__name__)
    guarded.__kwdefaults__, guarded.__defaults__ = own.__kwdefaults__, own.__defaults__
    new = guarded(trace)
    read = set(reads.list_read_in_backward(new.bound_symbols))
    if not reads.unsafe.isdisjoint(read):
        logger.info("nothing is rematerialized: backward would read %s", sorted(reads.unsafe & read))
        return trace
    return new


@dataclass(frozen=True, slots=True)
class _Reads:
    """The values that the backward part of a joint trace may read.

    Attributes:
        forward: the names of the values that the forward part computes or takes.
        unsafe: the names of values that user code may write into, if backward reads none in the same memory anyway.
    """

    forward: AbstractSet[str]
    unsafe: AbstractSet[str]

    def is_backward(self, symbol: Any) -> bool:
        """True if a bound symbol belongs to the backward part, as Thunder splits a joint trace."""
        return not _belongs_to_forward(symbol, self.forward)

    def list_read_in_backward(self, symbols: Iterable[Any]) -> Iterator[str]:
        """Yields the names of the forward values that backward reads."""
        for symbol in symbols:
            if self.is_backward(symbol) and not _returns(symbol):
                yield from (name for name in argument_names(symbol) if name in self.forward)


def _read_joint_trace(trace: Any) -> _Reads | None:
    """Returns the values that backward may read; None if the trace has no backward part."""
    returned = trace.bound_symbols[-1]
    values = returned.args[0] if returned.args else None
    if not _returns(returned) or not isinstance(values, Mapping) or _RESULTS not in values:
        return None
    results = {each.name for each in values[_RESULTS] if isinstance(each, Proxy)}
    given = [each for each in values["flat_args"] if isinstance(each, Proxy)]
    arguments = {each.name for each in given if isinstance(each, TensorProxy)}
    forward = _find_forward(trace.bound_symbols, results | {each.name for each in given})
    reads = _Reads(forward, frozenset())
    read = set(reads.list_read_in_backward(trace.bound_symbols))
    exposed = (arguments - find_parameters()) | results
    leaves = _read_leaves(leaf for symbol in trace.bound_symbols for leaf in leaves_of(symbol))
    # A read of a buffer's view reads the buffer: backward may have another view of it. And if an operation takes a
    # buffer in a narrow dtype, Thunder's backward reads it in a wide one, and PyTorch's reads the buffer itself.
    named = {name: name for name in arguments} | _pair_results(values[_RESULTS])
    promoted = set(named.values()) - _find_converted(named)
    harmless = _spread(_list_views(leaves, promoted), read)
    return _Reads(forward, _spread(leaves, exposed) - harmless)


def _returns(symbol: Any) -> bool:
    return symbol.sym.id is PrimIDs.RETURN


def _find_forward(symbols: Iterable[Any], wanted: set[str]) -> AbstractSet[str]:
    """Returns the names of forward's values, as ``split_into_forward_and_backward`` finds them."""
    forward = set(wanted)
    for symbol in reversed(list(symbols)):
        if not _returns(symbol) and _belongs_to_forward(symbol, forward):
            forward.update(argument_names(symbol))
            forward.update(proxy.name for proxy in symbol.flat_proxy_outs)
    return forward


def _belongs_to_forward(symbol: Any, forward: AbstractSet[str]) -> bool:
    if any(proxy.name in forward for proxy in symbol.flat_proxy_outs):
        return symbol.sym.name != "get_grad"
    is_copy = symbol.sym.name == "copy_" and len(symbol.args) > 1
    return is_copy and getattr(symbol.args[1], "name", None) in forward


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A primitive whose result may be its operand or a view of it.

    Attributes:
        operands: the names of the values that it takes.
        results: the names of the values that it returns.
        is_view: whether its result is a view of its operand where torch can make one.
        converts: whether its result has another dtype.
    """

    operands: Sequence[str]
    results: Sequence[str]
    is_view: bool
    converts: bool


def _read_leaves(symbols: Iterable[Any]) -> list[_Leaf]:
    """Returns the operations whose results may be views."""
    leaves = []
    for symbol in symbols:
        traits = op_traits(symbol_name(symbol.sym) or symbol.sym.name)
        is_view = traits.shape_only or traits.identity
        is_other = traits.conversion or traits.writes or symbol.sym.name in _OTHER_VIEWS
        if is_view or is_other or not symbol.sym.is_prim:
            results = [proxy.name for proxy in symbol.flat_proxy_outs]
            converts = traits.conversion and not traits.identity
            leaves.append(_Leaf(argument_names(symbol), results, is_view, converts))
    return leaves


def _spread(leaves: Iterable[_Leaf], names: AbstractSet[str]) -> AbstractSet[str]:
    """Returns these names, and those of values that share memory with them if these operations return views."""
    views: defaultdict[str, set[str]] = defaultdict(set)
    for leaf in leaves:
        for source in leaf.operands:
            for result in leaf.results:
                views[source].add(result)
                views[result].add(source)
    found, new = set(names), list(names)
    for name in new:
        new += views[name] - found
        found |= views[name]
    return found


def _list_views(leaves: Iterable[_Leaf], promoted: AbstractSet[str]) -> Iterator[_Leaf]:
    """Yields the operations that return a view, and those that only convert a view of promoted values."""
    inside = set(promoted)
    for leaf in leaves:
        if leaf.is_view or leaf.converts:
            is_inside = not inside.isdisjoint(leaf.operands)
            inside.update(leaf.results if is_inside else ())
            if leaf.is_view or is_inside:
                yield leaf


def _read_first_trace() -> Any:
    """Returns the interpreted trace of the function that is being compiled; None if nothing is."""
    _, stats = _compile_data.get()
    traces = getattr(stats, "last_traces", None)
    return traces[0] if traces else None


def _pair_results(results: Sequence[Any]) -> dict[str, str]:
    """Returns for each result's name in the first trace its name here; nothing if they do not correspond."""
    trace = _read_first_trace()
    first = tree_flatten(trace.bound_symbols[-1].args)[0] if trace else []
    if len(first) != len(results):
        return {}
    pairs = zip(first, results, strict=True)
    return {one.name: other.name for one, other in pairs if isinstance(one, Proxy) and isinstance(other, Proxy)}


def _find_converted(names: Mapping[str, str]) -> AbstractSet[str]:
    """Returns the values that the compiled function itself converts, as by ``x.float()``.

    Args:
        names: of values, by their names in the first trace.
    """
    trace = _read_first_trace()
    if trace is None:
        return set(names.values())
    origin, converted = dict(names), set()
    for symbol in trace.bound_symbols:
        found = next((origin[name] for name in argument_names(symbol) if name in origin), None)
        if found is None:
            continue
        operations = list(leaves_of(symbol))
        leaves = _read_leaves(operations)
        if len(leaves) < len(operations) or not all(leaf.is_view or leaf.converts for leaf in leaves):
            continue
        origin = {result: found for leaf in leaves for result in leaf.results} | origin
        if any(leaf.converts for leaf in leaves):
            converted.add(found)
    return converted


def find_parameters() -> set[str]:
    """Returns the names of the compiled function's parameters; nothing if they are not known."""
    data, stats = _compile_data.get()
    prologues = getattr(stats, "last_prologue_traces", None) or ()
    symbols = prologues[-1].bound_symbols if prologues else ()
    names = {
        proxy.name for each in symbols if each.sym.id is PrimIDs.UNPACK_PARAMETER for proxy in each.flat_proxy_outs
    }
    return names | _list_parameters_of_graph(getattr(data, "fn", None))


def _list_parameters_of_graph(function: Any) -> set[str]:
    """Returns the names of the inputs of a Dynamo graph that are parameters; nothing for another function."""
    import torch

    if not isinstance(function, torch.fx.GraphModule):
        return set()
    nodes = [node for node in function.graph.nodes if node.op == "placeholder"]
    return {node.name for node in nodes if isinstance(node.meta.get("example_value"), torch.nn.Parameter)}
