"""Which gathers travel together, in one coalesced call."""

from __future__ import annotations

from collections.abc import Iterator

from fusioncache.schedule.calls import CallGraph, Kind
from fusioncache.schedule.needs import Needs


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
            and total + size <= budget
            and graph.calls[index].channel == graph.calls[batch[0]].channel
            and needs.given[index] < needs.needed[batch[0]]
            and not needs.chained.intersection((index, batch[0]))
        )
        if batch and not joins:
            yield tuple(batch)
            batch, total = [], 0
        batch.append(index)
        total += size
    if batch:
        yield tuple(batch)
