"""Whole traces: what produces a proxy, dead code, regions' inputs and outputs, the cut between two regions.

No garbage is collected while Thunder traces and transforms: it would look through millions of objects that stay.

An operation that is equal to another one has the same results. So it is looked for among those that have.

Of several minimum cuts networkx returns the one that is next to the sink: the sink's side are the nodes that reach it
when the flow is at its maximum. They are the same for every maximum flow, so that it does not matter how one is found.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from math import inf
from types import ModuleType
from typing import Any

from fusioncache.process.collector import collect_behind, without_collector


def pause_collector(original: Callable[..., Any]) -> Callable[..., Any]:
    """Pauses the collector in the context in which Thunder traces, and in that in which it transforms.

    It enters that context also to try each program that is there. Of these there are as many as calls that missed, or
    fewer after an error; but then it has not noted yet that this search has ended.
    """

    @wraps(original)
    def compile_data_and_stats(cd: Any, cs: Any, /) -> Any:
        context = original(cd, cs)
        return _paused(context) if _is_compiling(cs) else context

    return compile_data_and_stats


def _is_compiling(statistics: Any) -> bool:
    try:
        found_nothing = statistics.last_trace_cache_stop >= statistics.last_trace_cache_start
        return bool(found_nothing and statistics.cache_misses > len(statistics.interpreter_cache))
    except Exception:  # something else than what Thunder counts in
        return False


@contextmanager
def _paused(context: Any) -> Iterator[None]:
    begun = time.perf_counter()
    with without_collector(), context:
        yield
    collect_behind(time.perf_counter() - begun)


def shorten_producers(original: Callable[..., Any]) -> Callable[..., Any]:
    """Compares names, where Thunder makes variables of the proxies and compares those."""
    from thunder.core.utils import ProxyDict

    from fusioncache.thunder_adapter.api import PrimIDs

    skip = (PrimIDs.COMMENT, PrimIDs.PRINT, PrimIDs.RETURN)

    @wraps(original)
    def producers(trace_or_bsyms: Any, *, _map_to_numbers: bool = False) -> Any:
        bsyms = trace_or_bsyms if isinstance(trace_or_bsyms, list) else trace_or_bsyms.bound_symbols
        found = ProxyDict()
        by_name = found._dict
        for index, bsym in enumerate(bsyms):
            if bsym.sym.id in skip:
                continue
            for out in bsym.flat_proxy_outs:
                name = out.name
                if by_name.get(name) is None and name not in [each.name for each in bsym.flat_proxy_args]:
                    by_name[name] = index if _map_to_numbers else bsym
        return found

    return producers


def shorten_remove_noop(original: Callable[..., Any]) -> Callable[..., Any]:
    """Asks once whether an operation has the tag, which can only get lost while operations are removed from it."""
    from thunder.core import symbol

    from fusioncache.thunder_adapter.api import OpTags

    tags = {OpTags.DONT_DCE}

    @wraps(original)
    def _remove_noop_subsymbols(bsym: Any) -> None:
        kept: list[Any] = []
        has_tag = True
        for each in bsym.subsymbols:
            if len(each.subsymbols) == 0 and not each.sym.is_prim:
                continue
            has_tag = has_tag and symbol.has_tags(bsym, tags)
            if not has_tag and not each.flat_proxy_outs:
                continue
            _remove_noop_subsymbols(each)
            kept.append(each)
        bsym.subsymbols = kept

    return _remove_noop_subsymbols


def shorten_dce(original: Callable[..., Any]) -> Callable[..., Any]:
    """Looks for what is needed by name, where Thunder makes a variable of each proxy, and compares those."""
    from thunder.core import pytree, symbol, trace, transform_common, utils

    from fusioncache.thunder_adapter.api import Proxy, Variable, prims

    tags = {prims.OpTags.DONT_DCE}

    @wraps(original)
    def dce(old: Any, needed_proxies: Any = None) -> Any:
        if needed_proxies is not None and not {Variable}.issuperset(map(type, needed_proxies)):
            return original(old, needed_proxies)
        start = time.perf_counter_ns()
        producer_of = utils.producers(old)._dict
        proxies = [each for each in pytree.tree_flatten(old.output)[0] if isinstance(each, Proxy)]
        names = {each.proxy.name for each in needed_proxies or ()}.union([each.name for each in proxies])
        kept: list[Any] = []
        for bsym in reversed(old.bound_symbols):
            if symbol.has_tags(bsym, tags) or is_needed(bsym, names, producer_of):
                transform_common._remove_noop_subsymbols(bsym)
                kept.append(bsym)
                proxies += bsym.flat_proxy_args
                names.update([each.name for each in bsym.flat_proxy_args])
        if needed_proxies is not None:  # which the caller goes on with
            needed_proxies.update(map(Variable, proxies))
        new = trace.from_trace(old)
        new.bound_symbols = transform_common.remove_duplicate_number_proxies(kept[::-1])
        took = (time.perf_counter_ns() - start) // 1000000
        new.set_provenance(trace.TraceProvenance(f"Dead Code Elimination (took {took} milliseconds)"))
        return new

    def is_needed(bsym: Any, names: set[str], producer_of: Mapping[str, Any]) -> bool:
        for out in bsym.flat_proxy_outs:
            if out.name in names:
                producer = producer_of[out.name]
                if producer is bsym or producer == bsym:
                    return True
        return False

    return dce


def shorten_region(original: Callable[..., Any]) -> Callable[..., Any]:
    """Finds inputs and outputs by name, with a question for each operation that costs the same for any region."""
    from thunder.core.utils import OrderedSet
    from thunder.executors import utils as executor_utils

    from fusioncache.thunder_adapter.api import Proxy, Variable

    @wraps(original)
    def __init__(self: Any, producers: Any, consumers: Any, bound_symbols: Any) -> None:
        self.bound_symbols = bound_symbols
        is_inside = _make_membership(bound_symbols)
        produced: dict[str, Any] = {}
        consumed: dict[str, Any] = {}
        for bsym in bound_symbols:
            for each in bsym.flat_outs:
                if isinstance(each, Proxy) and is_inside(producers[each]):
                    produced.setdefault(each.name, each)
            if bsym.sym.id not in executor_utils.comment_symbols:
                for each in bsym.flat_args:
                    if isinstance(each, Proxy):
                        consumed.setdefault(each.name, each)
        inputs = [Variable(each) for each in consumed.values() if not is_inside(producers[each])]
        outputs = [
            Variable(each)
            for each in produced.values()
            if not all(is_inside(consumer) for consumer in consumers.get(each, ()))
        ]
        order = executor_utils.order_proxies(bound_symbols)
        self.inputs = OrderedSet(sorted(inputs, key=lambda each: order[each.proxy.name]))
        self.outputs = OrderedSet(sorted(outputs, key=lambda each: order[each.proxy.name]))

    return __init__


def _make_membership(bound_symbols: Iterable[Any]) -> Callable[[Any], bool]:
    """Makes a function that returns whether an operation is, or is equal to, one of these."""
    by_results: defaultdict[tuple[str, ...], list[Any]] = defaultdict(list)
    for each in bound_symbols:
        by_results[_name_results(each)].append(each)
    return lambda bsym: bsym in by_results.get(_name_results(bsym), ())


def _name_results(bsym: Any) -> tuple[str, ...]:
    return tuple([each.name for each in bsym.flat_proxy_outs])


def shorten_networkx(original: ModuleType) -> ModuleType:
    """Makes a module of the two names that Thunder uses of networkx; returns networkx if it may use other backends."""
    if any(original.config.backend_priority.values()):
        return original
    copy: Any = ModuleType(original.__name__, original.__doc__)
    copy.DiGraph, copy.minimum_cut = FlowGraph, _cut_like(original)
    return copy


class FlowGraph(dict[str, dict[str, float]]):
    """The capacities of a directed graph's edges, by their two nodes."""

    def add_edges_from(self, edges: Iterable[tuple[str, str, dict[str, float]]]) -> None:
        """Adds edges, of which a later one takes the place of an earlier one."""
        for source, target, attributes in edges:
            self.setdefault(source, {})[target] = attributes["capacity"]
            self.setdefault(target, {})


def _cut_like(networkx: Any) -> Callable[[FlowGraph, str, str], Any]:
    def minimum_cut(graph: FlowGraph, source: str, sink: str) -> tuple[float, tuple[set[str], set[str]]]:
        """Returns the cut's value and the nodes of either side, or raises what networkx raises."""
        found = cut(graph, source, sink)
        if found is not None:
            return found
        edges = ((one, other, {"capacity": value}) for one, others in graph.items() for other, value in others.items())
        own = networkx.DiGraph()
        own.add_edges_from(edges)
        return networkx.minimum_cut(own, source, sink)  # type: ignore[no-any-return]

    return minimum_cut


def cut(graph: FlowGraph, source: str, sink: str) -> tuple[float, tuple[set[str], set[str]]] | None:
    """Returns a minimum cut's value and the nodes of either side, the sink's as small as possible.

    None if a path has no limit, or if there is no such node.
    """
    if source not in graph or sink not in graph or source == sink:
        return None
    left: dict[str, dict[str, float]] = defaultdict(dict)
    for one, others in graph.items():
        for other, capacity in others.items():
            if one != other and capacity > 0:
                left[one][other] = capacity
                left[other].setdefault(one, 0)
    value = 0.0
    while path := _find_path(left, source, sink):
        most = min(left[one][other] for one, other in path)
        if most == inf:
            return None
        value += most
        for one, other in path:
            left[one][other] -= most
            left[other][one] += most
    side = _find_reaching(left, sink)
    return value, (set(graph) - side, side)


def _find_path(left: dict[str, dict[str, float]], source: str, sink: str) -> list[tuple[str, str]]:
    """Returns the edges of a shortest path on which something is left; none if there is no path."""
    before: dict[str, str] = {source: source}
    nodes = [source]
    for node in nodes:
        for other, capacity in left[node].items():
            if capacity > 0 and other not in before:
                before[other] = node
                nodes.append(other)
        if sink in before:
            break
    path: list[tuple[str, str]] = []
    node = sink
    while node in before and node != source:
        path.append((before[node], node))
        node = before[node]
    return path


def _find_reaching(left: dict[str, dict[str, float]], sink: str) -> set[str]:
    """Returns the nodes from which there is a path to the sink on which something is left."""
    reaching = {sink}
    nodes = [sink]
    for node in nodes:
        for other in left[node]:
            if other not in reaching and left[other][node] > 0:
                reaching.add(other)
                nodes.append(other)
    return reaching
