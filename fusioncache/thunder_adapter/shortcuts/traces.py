"""Shortcuts for whole traces: dead code, inputs and outputs of regions, minimum cuts.

The garbage collector is paused while Thunder traces and transforms: it would scan millions of objects that stay alive.

Equal operations have the same results. So an operation is compared only with those that have its results.

Of several minimum cuts networkx returns the one next to the sink: the sink's side consists of the nodes that reach the
sink in the residual graph of a maximum flow. It is the same for every maximum flow, so any algorithm may find one. By
augmenting paths, the cuts of a narrow Llama take half the time that networkx's default takes.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial, wraps
from types import ModuleType
from typing import Any

from thunder.core import pytree, symbol, trace, transform_common, utils

from fusioncache.process.collector import without_collector
from fusioncache.thunder_adapter.api import OpTags, Proxy, Variable, prims


def pause_collector(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a ``compile_data_and_stats`` that pauses the collector while Thunder traces, and while it transforms.

    Thunder enters this context also to try each cache entry. Then there are as many entries as misses. There are fewer
    after an error, but then Thunder has not yet recorded the end of the current search.
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
    except Exception:  # an object without Thunder's counters
        return False


@contextmanager
def _paused(context: Any) -> Iterator[None]:
    with without_collector(), context:
        yield


def shorten_remove_noop(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a ``_remove_noop_subsymbols`` that no longer checks for the tag once an operation lacks it.

    Removing subsymbols can only remove the tag.
    """
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
    """Returns a ``dce`` that finds needed results by name, where Thunder makes and compares variables of proxies."""
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
        if needed_proxies is not None:  # the caller uses it afterwards
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
    """Returns a ``Region.__init__`` that finds inputs and outputs by name, with membership tests in constant time.

    Thunder compares operations in pairs. In passes with symbolic sizes each such comparison would become a guard.
    """
    from thunder.core.utils import OrderedSet
    from thunder.executors import utils as executor_utils

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
    """Returns a function that is True for an operation that is, or is equal to, one of these."""
    by_results: defaultdict[tuple[str, ...], list[Any]] = defaultdict(list)
    for each in bound_symbols:
        by_results[_name_results(each)].append(each)
    return lambda bsym: bsym in by_results.get(_name_results(bsym), ())


def _name_results(bsym: Any) -> tuple[str, ...]:
    return tuple([each.name for each in bsym.flat_proxy_outs])


def shorten_networkx(original: ModuleType) -> ModuleType:
    """Returns a copy of networkx that finds minimum cuts by augmenting paths; networkx if it may use other backends."""
    if any(original.config.backend_priority.values()):
        return original
    copy = ModuleType(original.__name__, original.__doc__)
    faster = partial(original.minimum_cut, flow_func=original.algorithms.flow.edmonds_karp)
    copy.__dict__.update(vars(original), minimum_cut=faster)
    return copy
