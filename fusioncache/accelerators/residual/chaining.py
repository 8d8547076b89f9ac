"""Passes residual streams on from region to region, or rebuilds them, where every region would recompute them."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fusioncache.accelerators.residual.costs import costs_of
from fusioncache.accelerators.residual.events import PlanEvents, Step, events_of
from fusioncache.accelerators.residual.fused_calls import UNKNOWN, Compilers, adds_twice, read_calls
from fusioncache.accelerators.residual.obstacles import VARIES
from fusioncache.accelerators.residual.plans import Choice, ResidualPlan, choose
from fusioncache.accelerators.residual.streams import Stream, streams_of
from fusioncache.accelerators.residual.sums import Call
from fusioncache.backends.symbols import outputs_of
from fusioncache.transform.rewrite import derive, free_numbers, fuse_like

_CHANGE_REGIONS = (ResidualPlan.CARRY, ResidualPlan.SEGMENTED)


def replan_streams(
    trace: Any, wanted: ResidualPlan | None, budget: int | None, compilers: Compilers = UNKNOWN
) -> tuple[Any, tuple[Choice, ...]]:
    """Returns a trace whose residual streams are summed in the cheapest way, and what was chosen for each stream.

    The bits are the same: a sum that is passed on has a dtype in which the regions computed it. A stream stays as it is
    if a region that uses it might compute other bits because of what else is in its kernel.

    Args:
        trace: a forward or a backward trace, after fusion, with its ``del`` statements.
        wanted: the plan for every stream that can have it; None for the plan that costs least.
        budget: how many bytes of one stream's sums may be kept alive.
        compilers: the compilers of the fused calls of the trace.

    Returns:
        The new trace, or the same object if no region changes; and what was chosen for each stream.
    """
    start = time.perf_counter()
    if not adds_twice(trace):
        return trace, ()
    calls, around = read_calls(trace, compilers)
    candidates = [(stream, _choice(stream, wanted, budget)) for stream in streams_of(calls, around)]
    planned = [
        (stream, choice) for stream, choice in candidates if not (stream.varies and choice.plan in _CHANGE_REGIONS)
    ]
    for _ in range(len(candidates) - len(planned)):
        compilers.report_left(VARIES)
    choices = tuple(choice for _, choice in planned)
    changed = [(stream, events_of(stream)[choice.plan]) for stream, choice in planned if choice.plan in _CHANGE_REGIONS]
    if not changed:
        return trace, choices
    symbols = _Rewriter(trace, calls, [stream for stream, _ in changed]).symbols_with(_group_events(changed))
    return _check(derive(trace, symbols, "Residual streams by fusioncache", start), trace), choices


def _choice(stream: Stream, wanted: ResidualPlan | None, budget: int | None) -> Choice:
    costs = costs_of(stream)
    return Choice(stream.head, len({want.sum for want in stream.wants}), choose(costs, wanted, budget), costs)


@dataclass(slots=True)
class _Group:
    """What is done at one position of a trace, for all its streams."""

    steps: list[Step] = field(default_factory=list)
    takes: set[str] = field(default_factory=set)
    gives: list[str] = field(default_factory=list)


def _group_events(changed: Iterable[tuple[Stream, PlanEvents]]) -> dict[int, _Group]:
    groups: dict[int, _Group] = defaultdict(_Group)
    for stream, planned in changed:
        for event in planned.events:
            group = groups[event.position]
            if isinstance(event, Step):
                group.steps.append(event)
            else:
                group.takes.update(event.takes)
                group.gives += event.gives
        for position in stream.idle:
            groups[position]  # where there is nothing to do but to leave out what is not needed
    return groups


class _Rewriter:
    """Makes the new bound symbols of a trace."""

    def __init__(self, trace: Any, calls: Sequence[Call], streams: Iterable[Stream]):
        self.old = trace.bound_symbols
        self.terms = {sum_.name: sum_.terms for stream in streams for sum_ in stream.sums}
        self.numbers = free_numbers((), trace)
        self.calls = {call.position for call in calls}
        self.symbols: dict[str, Any] = {}
        self.fusions: dict[str, Any] = {}  # in which the values are computed
        for call in calls:
            for symbol in self.old[call.position].subsymbols:
                for proxy in symbol.flat_proxy_outs:
                    self.symbols.setdefault(proxy.name, symbol)
                    self.fusions.setdefault(proxy.name, self.old[call.position])

    def symbols_with(self, groups: Mapping[int, _Group]) -> Iterator[Any]:
        """Yields the bound symbols of the new trace."""
        for position, symbol in enumerate(self.old):
            if position in groups:
                yield from (self._make_step(step) for step in groups[position].steps)
            if position in groups and position in self.calls:
                yield from self._change(symbol, groups[position])
            else:
                yield symbol

    def _change(self, fusion: Any, group: _Group) -> Iterator[Any]:
        """Yields a fused call that takes and gives sums, if it still computes anything."""
        outputs = [proxy for proxy in outputs_of(fusion) if proxy.name not in group.takes]
        known = {proxy.name for proxy in outputs}
        outputs += [self.symbols[name].output for name in group.gives if name not in known]
        symbols = _select_needed(fusion.subsymbols, {proxy.name for proxy in outputs}, group.takes)
        if len(symbols) == len(fusion.subsymbols) and len(outputs) == len(known):
            yield fusion
        elif outputs:
            yield _fuse(fusion, symbols, outputs, _number(fusion))

    def _make_step(self, step: Step) -> Any:
        inputs = {term for sum_ in step.sums for term in self.terms[sum_]}.union(step.takes)
        symbols: dict[int, Any] = {}
        stack = [(step.sums[-1], False)]
        while stack:
            name, ready = stack.pop()
            symbol = self.symbols[name]
            if ready:
                symbols[id(symbol)] = symbol
            elif id(symbol) not in symbols:
                stack.append((name, True))
                used = (proxy.name for proxy in symbol.flat_proxy_args)
                stack.extend((name, False) for name in used if name not in inputs)
        sum_ = step.sums[-1]
        return _fuse(self.fusions[sum_], list(symbols.values()), [self.symbols[sum_].output], next(self.numbers))


def _select_needed(symbols: Sequence[Any], outputs: set[str], given: Collection[str]) -> list[Any]:
    """Returns the bound symbols that are still needed where some values are given."""
    needed = set(outputs)
    selected = []
    for symbol in reversed(symbols):
        if any(proxy.name in needed and proxy.name not in given for proxy in symbol.flat_proxy_outs):
            needed.update(proxy.name for proxy in symbol.flat_proxy_args)
            selected.append(symbol)
    return selected[::-1]


def _fuse(fusion: Any, symbols: list[Any], outputs: list[Any], number: int) -> Any:
    """Returns a call of these bound symbols, by the executor of a fused call."""
    defined = {proxy.name for symbol in symbols for proxy in symbol.flat_proxy_outs}
    used = {proxy.name: proxy for symbol in symbols for proxy in symbol.flat_proxy_args}
    inputs = [proxy for name, proxy in used.items() if name not in defined]
    return fuse_like(fusion, number, inputs, outputs, symbols)


def _number(fusion: Any) -> int:
    """Returns the number that ends the name of a fused call, and tells the call from the others."""
    name = fusion.sym.name
    return int(name[len(name.rstrip("0123456789")) :])


def _check(new: Any, old: Any) -> Any:
    """Returns the new trace, if it defines each value that it uses before the use, and once.

    Raises:
        RuntimeError: if not.
    """
    from fusioncache.thunder_adapter.api import PrimIDs

    anywhere = {
        proxy.name for trace in (old, new) for symbol in trace.bound_symbols for proxy in symbol.flat_proxy_outs
    }
    defined: set[str] = set()
    for symbol in new.bound_symbols:
        used = {proxy.name for proxy in symbol.flat_proxy_args}
        results = {proxy.name for proxy in symbol.flat_proxy_outs} - used
        if not (used & anywhere <= defined) or (symbol.sym.is_fusion and not results.isdisjoint(defined)):
            raise RuntimeError(f"{symbol.sym.name} does not fit into its place")
        defined |= results
        if symbol.sym.id is PrimIDs.DEL:
            defined -= used
    return new
