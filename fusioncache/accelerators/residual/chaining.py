"""Passes sums of residual streams from region to region, or rebuilds them, where every region would recompute them.

The first part reads the fused calls of a trace as values; the second applies a plan to the trace.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from fusioncache.accelerators.residual.plans import Choice, Event, ResidualOptions, ResidualPlan, Step, events_of
from fusioncache.accelerators.residual.rebuild import VARIES
from fusioncache.accelerators.residual.sums import FusedCall, OutsideValues, Stream, streams_of
from fusioncache.backends.bound_symbols import outputs_of, symbol_name, written_values
from fusioncache.ir import Declined, Scope
from fusioncache.ir.ops import ADD, op_traits, writes_in_place
from fusioncache.thunder_adapter.api import PrimIDs
from fusioncache.transform.executors import origin_of
from fusioncache.transform.region import region_of
from fusioncache.transform.rewrite import derive, free_numbers, fuse
from fusioncache.transform.transform import TemplateTransform


def adds_twice(trace: Any) -> bool:
    """True if any add is in two regions. Most traces need no closer look."""
    seen: set[str] = set()
    for fusion in trace.bound_symbols:
        for symbol in fusion.subsymbols if fusion.sym.is_fusion else ():
            leaf = _unwrap(symbol)
            if leaf.sym.id is PrimIDs.ADD:
                if leaf.output.name in seen:
                    return True
                seen.add(leaf.output.name)
    return False


def _unwrap(symbol: Any) -> Any:
    """Returns the only add or conversion in an operation, as ``torch.compile`` wraps them; else the operation."""
    leaf = symbol
    while len(leaf.subsymbols) == 1:
        leaf = leaf.subsymbols[0]
    name = symbol_name(leaf.sym) or ""
    return leaf if name == ADD or op_traits(name).conversion else symbol


def read_calls(trace: Any, transform: TemplateTransform) -> tuple[list[FusedCall], OutsideValues]:
    """Returns the fused calls that are understood, and the values of the rest of the trace."""
    calls = []
    defined: set[str] = set()
    written: set[str] = set()
    for position, symbol in enumerate(trace.bound_symbols):
        call = _read_call(position, symbol, transform) if symbol.sym.is_fusion else None
        if call is not None:
            calls.append(call)
        elif symbol.sym.id is not PrimIDs.DEL:
            defined.update(proxy.name for proxy in symbol.flat_proxy_outs)
            written.update(written_values(symbol))
    return calls, OutsideValues(defined, written)


def _read_call(position: int, fusion: Any, transform: TemplateTransform) -> FusedCall | None:
    leaves = tuple(map(_unwrap, fusion.subsymbols))
    try:
        origin_of(fusion)
        region = region_of(fusion.from_bsym(subsymbols=leaves))
    except Declined as declined:
        declined.require(Scope.REGION)
        return None
    if region.sizes or writes_in_place(region):
        return None
    names = [proxy.name for proxy in fusion.args]
    for symbol in leaves:
        results = symbol.output if isinstance(symbol.output, (tuple, list)) else (symbol.output,)
        names += ["" if proxy is None else proxy.name for proxy in results]
    return FusedCall(position, region, tuple(names), transform.backends.arithmetic(fusion))


_CHANGE_REGIONS = (ResidualPlan.CARRY, ResidualPlan.SEGMENTED)


def replan_streams(
    trace: Any, options: ResidualOptions, transform: TemplateTransform
) -> tuple[Any, tuple[Choice, ...]]:
    """Returns a trace whose residual streams are summed by the cheapest plans, and the choice for each stream.

    The bits are the same: a sum that is passed on has a dtype in which the regions computed it. A stream is not changed
    if the bits of a region that uses it might depend on the other operations of its kernel.

    Args:
        trace: a forward or a backward trace, after fusion, with its ``del`` statements.
        options: the user's.
        transform: of the trace.

    Returns:
        The new trace, or the same object if no region changes; and the choice for each stream.
    """
    if not adds_twice(trace):
        return trace, ()
    calls, around = read_calls(trace, transform)
    candidates = [(stream, Choice.of(stream, options)) for stream in streams_of(calls, around)]
    planned = [
        (stream, choice) for stream, choice in candidates if not (stream.varies and choice.plan in _CHANGE_REGIONS)
    ]
    for _ in range(len(candidates) - len(planned)):
        transform.report_unchanged(VARIES)
    choices = tuple(choice for _, choice in planned)
    changed = [(stream, events_of(stream)[choice.plan]) for stream, choice in planned if choice.plan in _CHANGE_REGIONS]
    if not changed:
        return trace, choices
    symbols = _Rewriter(trace, calls, [stream for stream, _ in changed]).symbols_with(_group_events(changed))
    return _check(derive(trace, symbols, "Residual streams by fusioncache"), trace), choices


def _group_events(changed: Iterable[tuple[Stream, Sequence[Event]]]) -> dict[int, list[Event]]:
    """Returns the events at each position of a trace. The removal of dead code is no event."""
    groups: dict[int, list[Event]] = defaultdict(list)
    for stream, events in changed:
        groups.update((position, []) for position in stream.idle if position not in groups)
        for event in events:
            groups[event.position].append(event)
    return groups


class _Rewriter:
    """Makes the new bound symbols of a trace."""

    def __init__(self, trace: Any, calls: Sequence[FusedCall], streams: Iterable[Stream]):
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

    def symbols_with(self, groups: Mapping[int, Sequence[Event]]) -> Iterator[Any]:
        """Yields the bound symbols of the new trace."""
        for position, symbol in enumerate(self.old):
            yield from (self._make_step(event) for event in groups.get(position, ()) if isinstance(event, Step))
            if position in groups and position in self.calls:
                changes = [event for event in groups[position] if not isinstance(event, Step)]
                yield from self._change(symbol, changes)
            else:
                yield symbol

    def _change(self, fusion: Any, changes: Sequence[Event]) -> Iterator[Any]:
        """Yields a fused call that takes and returns sums, if it still computes anything."""
        inputs = {name for change in changes for name in change.inputs}
        outputs = [proxy for proxy in outputs_of(fusion) if proxy.name not in inputs]
        known = {proxy.name for proxy in outputs}
        outputs += [self.symbols[name].output for change in changes for name in change.outputs if name not in known]
        symbols = _select_needed(fusion.subsymbols, {proxy.name for proxy in outputs}, inputs)
        if len(symbols) == len(fusion.subsymbols) and len(outputs) == len(known):
            yield fusion
        elif outputs:
            yield _fuse(fusion, symbols, outputs, _number(fusion))

    def _make_step(self, step: Step) -> Any:
        inputs = {term for sum_ in step.sums for term in self.terms[sum_]}.union(step.inputs)
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
    """Returns the bound symbols that are still needed if some values are given (dead code elimination)."""
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
    return fuse(fusion.sym.executor, number, inputs, outputs, symbols)


def _number(fusion: Any) -> int:
    """Returns the number at the end of a fused call's name, which distinguishes it from other calls."""
    name = fusion.sym.name
    return int(name[len(name.rstrip("0123456789")) :])


def _check(new: Any, old: Any) -> Any:
    """Returns the new trace, if it defines each value once, and before all uses.

    Raises:
        RuntimeError: if it does not.
    """
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
