"""Which calls have to stay behind which others: makers of values, and whoever touches memory that is written."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from fusioncache.accelerators.schedule.calls import COLLECTIVES, CallNode, Kind
from fusioncache.ir.errors import Declined, Scope


def find_makers(calls: Sequence[CallNode]) -> Mapping[str, int]:
    """Returns which call gives each value.

    Raises:
        Declined: if a value is given twice, or taken before it is given.
    """
    makers: dict[str, int] = {}
    inputs: set[str] = set()
    for index, call in enumerate(calls):
        inputs.update(name for name in call.takes if name not in makers)
        for name in call.gives:
            if name in makers or name in inputs:
                raise Declined("a value is defined twice, or too late", Scope.ORDER)
            makers[name] = index
    return makers


def find_waits(calls: Sequence[CallNode], makers: Mapping[str, int]) -> Mapping[int, int]:
    """Returns the wait of each collective.

    Raises:
        Declined: if a collective has not exactly one wait, or something else takes what only a wait may take.
    """
    waits: dict[int, int] = {}
    for index, call in enumerate(calls):
        for name in call.takes:
            maker = makers.get(name)
            if maker is None or calls[maker].kind not in COLLECTIVES:
                continue
            if call.kind is not Kind.WAIT or maker in waits or len(call.takes) > 1:
                raise Declined("the result of a collective is used by something else than one wait", Scope.ORDER)
            waits[maker] = index
    started = {index for index, call in enumerate(calls) if call.kind in COLLECTIVES}
    if started != set(waits) or len(waits) != sum(call.kind is Kind.WAIT for call in calls):
        raise Declined("a collective has no wait, or a wait no collective", Scope.ORDER)
    return waits


def find_memory(calls: Sequence[CallNode]) -> Mapping[str, str]:
    """Returns of each value a value that stands for the memory in which both lie, or may lie."""
    parent: dict[str, str] = {}

    def find(name: str) -> str:
        parent.setdefault(name, name)
        while parent[name] != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    for call in calls:
        for name in (*call.takes, *call.gives):
            find(name)
        shared = call.takes if call.kind in (Kind.VIEW, Kind.WAIT) else call.lies_in
        for name in shared:
            for given in call.gives:
                parent[find(given)] = find(name)
    return {name: find(name) for name in parent}


def find_dependences(calls: Sequence[CallNode]) -> tuple[tuple[int, ...], ...]:
    """Returns for each call the calls that have to stay before it. Linear in what calls take and give.

    Who touches memory that is written stays before or behind the writer, as in the order given. A wait touches all that
    its collective does, because until then the collective does so.

    Raises:
        Declined: as ``find_makers`` and ``find_waits`` do.
    """
    makers = find_makers(calls)
    waits = find_waits(calls, makers)
    needed: list[set[int]] = [{makers[name] for name in call.takes if name in makers} for call in calls]
    if any(call.writes for call in calls):
        _add_memory_order(calls, {wait: start for start, wait in waits.items()}, needed)
    return tuple(tuple(sorted(each)) for each in needed)


def _add_memory_order(calls: Sequence[CallNode], starts: Mapping[int, int], needed: list[set[int]]) -> None:
    memory = find_memory(calls)
    writer: dict[str, int] = {}
    readers: dict[str, list[int]] = defaultdict(list)
    for index, call in enumerate(calls):
        touching = [call, calls[starts[index]]] if index in starts else [call]
        written = _memory_of((name for one in touching for name in one.writes), memory)
        touched = _memory_of((name for one in touching for name in (*one.takes, *one.gives)), memory)
        for place in touched:
            if place in writer:
                needed[index].add(writer[place])
            if place in written:
                needed[index].update(readers.pop(place, ()))
                writer[place] = index
            else:
                readers[place].append(index)
        needed[index].discard(index)


def _memory_of(names: Iterable[str], memory: Mapping[str, str]) -> dict[str, None]:
    """Returns the memory of these values, in their order, each once."""
    return dict.fromkeys(memory[name] for name in names)
