"""Which gathers travel together, in one coalesced call."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from fusioncache.accelerators.schedule.calls import COLLECTIVES, CallGraph, Kind
from fusioncache.accelerators.schedule.needs import Needs

_SHARES = 16
"""How many batches there are at least of all that is gathered, so that most travels beside what is computed."""


def choose_budget(graph: CallGraph, most: int) -> int:
    """Returns how many bytes may travel together: so many at most, and a small share of all."""
    total: dict[Kind, int] = defaultdict(int)
    for index, call in enumerate(graph.calls):
        if call.kind in COLLECTIVES:
            total[call.kind] += graph.message_bytes(index)
    return min(most, max(total.values(), default=0) // _SHARES)


def batch_gathers(graph: CallGraph, needs: Needs, budget: int) -> tuple[tuple[int, ...], ...]:
    """Returns the gathers in order of need, and together those that travel together. Takes n log n.

    Together travel gathers of one channel that follow each other and do not have more bytes than the budget, if all of
    them can be started when the first one has to be.
    """
    gathers = [index for index, call in enumerate(graph.calls) if call.kind is Kind.GATHER]
    gathers.sort(key=lambda index: (needs.needed[index], index))
    return tuple(_batch(graph, needs, gathers, budget))


def _batch(graph: CallGraph, needs: Needs, gathers: list[int], budget: int) -> Iterator[tuple[int, ...]]:
    batch: list[int] = []
    total = 0
    for index in gathers:
        size = graph.message_bytes(index)
        joins = (
            batch
            and graph.calls[index].channel
            and total + size <= budget
            and graph.calls[index].channel == graph.calls[batch[0]].channel
            and needs.given[index] < needs.needed[batch[0]]
            and not needs.chained.keys() & {index, batch[0]}
        )
        if batch and not joins:
            yield tuple(batch)
            batch, total = [], 0
        batch.append(index)
        total += size
    if batch:
        yield tuple(batch)
