"""The cost of each plan for a stream."""

from __future__ import annotations

from fusioncache.accelerators.residual.events import Index, PlanEvents, events_of
from fusioncache.accelerators.residual.plans import Cost, ResidualPlan
from fusioncache.accelerators.residual.streams import Stream
from fusioncache.template.plan import fold_widths


def costs_of(stream: Stream) -> dict[ResidualPlan, Cost]:
    """Returns the cost of each plan that there is for a stream. ``moved`` counts terms and sums, read and written.

    Sums that are rounded to another dtype on the way cannot be folded. If carrying adds terms early, those that wait
    for it count as alive, under each plan.
    """
    index = Index(stream)
    plans = events_of(stream)
    early = plans[ResidualPlan.CARRY].early > 0
    costs = dict(zip((ResidualPlan.INLINE, ResidualPlan.FOLD), _from_scratch(index, early), strict=True))
    if not all(sum_.direct for sum_ in stream.sums):
        del costs[ResidualPlan.FOLD]
    return costs | {plan: _cost(index, planned, early) for plan, planned in plans.items()}


def _from_scratch(index: Index, early: bool) -> tuple[Cost, Cost]:
    """Returns the costs of adding up each region's sums anew, inline and by folds."""
    moved = extra = largest = 0
    arities: set[int] = set()
    widths: set[int] = set()
    for _, wants in index.wants:
        sums: set[str] = set()
        for want in wants:
            sums.update(index.path(want, sums)[1])
        size = max(index.sums[want].size for want in wants)
        folds = fold_widths(len(sums))
        moved += sum(index.sums[sum_].term_size for sum_ in sums)
        extra += 2 * size * len(folds)
        largest = max(largest, size)
        arities.add(len(sums))
        widths.update(folds)
    waiting = sum(sum_.term_size for sum_ in index.stream.sums if early and sum_.since is not None)
    return Cost(moved, waiting, len(arities)), Cost(moved + extra, waiting + largest, len(widths) + 1)


def _cost(index: Index, planned: PlanEvents, early: bool) -> Cost:
    kernels = {(type(event), len(event.sums), len(event.takes), len(event.gives)) for event in planned.events}
    moved = 0
    for event in planned.events:
        moved += sum(index.sums[sum_].term_size for sum_ in event.sums)
        moved += sum(index.sums[sum_].size for sum_ in (*event.takes, *event.gives))
    return Cost(moved, _most_alive(index, planned, early), len(kernels))


def _most_alive(index: Index, planned: PlanEvents, early: bool) -> int:
    """Returns the most bytes that given sums have at any time, each from where it is given to where it is last taken.

    With ``early`` the terms count as well, each from where it is available to where it is last added.
    """
    taken = {sum_: number for number, event in enumerate(planned.events) for sum_ in event.takes}
    added = {sum_: number for number, event in enumerate(planned.events) for sum_ in event.sums}
    waiting = [(sum_.since, sum_.term_size) for sum_ in index.stream.sums if sum_.since is not None and early]
    waiting.sort(reverse=True)
    most = alive = 0
    for number, event in enumerate(planned.events):
        while waiting and waiting[-1][0] <= event.position:
            alive += waiting.pop()[1]
        alive += sum(index.sums[sum_].size for sum_ in event.gives)
        most = max(most, alive)
        alive -= sum(index.sums[sum_].size for sum_ in dict.fromkeys(event.takes) if taken[sum_] == number)
        if early:
            ended = [index.sums[sum_] for sum_ in event.sums if added[sum_] == number]
            alive -= sum(sum_.term_size for sum_ in ended if sum_.since is not None)
    return most
