"""Plans for the sums of a residual stream: which regions compute, pass on or rebuild them, and what each plan costs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import groupby, pairwise
from math import isqrt

from fusioncache.accelerators.residual.sums import Stream
from fusioncache.template.plan import fold_widths


class ResidualPlan(Enum):
    """The way in which regions get the partial sums of one residual stream that they use.

    ``INLINE``: each region adds up its own sum, in its own kernel.
    ``FOLD``: each region's sum is added up by kernels of a few fixed widths.
    ``CARRY``: a sum is passed on, and the next one starts from it.
    ``SEGMENTED``: every k-th sum is kept, and the sums between are rebuilt from it, a segment at a time.
    """

    INLINE = "inline"
    FOLD = "fold"
    CARRY = "carry"
    SEGMENTED = "segmented"


@dataclass(frozen=True, slots=True)
class ResidualOptions:
    """The user's options for residual streams.

    Attributes:
        recompute: whether sums that backward can rebuild are not saved for it.
        plan: the plan for all streams; None for the cheapest of each.
        budget: how many bytes of a stream's sums may be kept alive; None for as many as the plan keeps.
    """

    recompute: bool
    plan: ResidualPlan | None
    budget: int | None

    @classmethod
    def of(cls, recompute: str | None, residual: str, memory_budget: int | None) -> ResidualOptions:
        """Returns the options of ``FusionCache``.

        Raises:
            ValueError: if one is invalid.
        """
        plans = {plan.value: plan for plan in ResidualPlan}
        if recompute not in (None, "residual"):
            raise ValueError(f"recompute must be None or 'residual', got {recompute!r}")
        if residual != "auto" and residual not in plans:
            raise ValueError(f"residual must be one of {', '.join(map(repr, ['auto', *plans]))}, got {residual!r}")
        if memory_budget is not None and (isinstance(memory_budget, bool) or not isinstance(memory_budget, int)):
            raise ValueError(f"memory_budget must be a number of bytes, got {memory_budget!r}")
        if memory_budget is not None and memory_budget < 0:
            raise ValueError(f"memory_budget must not be negative, got {memory_budget}")
        return cls(recompute is not None, plans.get(residual), memory_budget)


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a plan.

    Attributes:
        moved: bytes read and written for the stream, beyond those that every plan needs.
        alive: peak bytes of sums that are kept alive.
        kernels: the number of compiled kernels.
    """

    moved: int
    alive: int
    kernels: int


@dataclass(frozen=True, slots=True)
class Choice:
    """The plan chosen for a stream, and the costs of the alternatives.

    Attributes:
        stream: the name of the value that it starts from.
        sums: how many partial sums are used.
        plan: the plan that is used.
        costs: of each possible plan.
    """

    stream: str
    sums: int
    plan: ResidualPlan
    costs: Mapping[ResidualPlan, Cost]

    @classmethod
    def of(cls, stream: Stream, options: ResidualOptions) -> Choice:
        """Returns the choice for a stream in a trace."""
        costs, sums = costs_of(stream), {use.sum for use in stream.uses}
        return cls(stream.head, len(sums), choose(costs, options.plan, options.budget), costs)

    def __str__(self) -> str:
        lines = [f"stream from {self.stream}, {self.sums} sums: {self.plan.value}"]
        for plan, cost in self.costs.items():
            figures = f"{cost.moved:>15,} B moved {cost.alive:>15,} B alive {cost.kernels:>4} kernels"
            lines.append(f"  {plan.value:<9} {figures}")
        return "\n".join(lines)


_FEW_KERNELS = 8


def choose(
    costs: Mapping[ResidualPlan, Cost], requested: ResidualPlan | None = None, budget: int | None = None
) -> ResidualPlan:
    """Returns the plan for a stream.

    Args:
        costs: of the possible plans.
        requested: the user's plan, which is taken if it is possible.
        budget: how many bytes of sums may be kept alive. With a budget, the plan within it that moves least is taken,
            and if no plan is within it, the one that keeps least alive. Without a budget, it is the one that keeps
            least alive among the plans that are linear in depth. These move at most four times the bytes of the
            cheapest plan or of all sums, the larger of both, and compile at most a few kernels more than the fewest.
    """
    if requested is not None and requested in costs:
        return requested
    if budget is not None:
        within = [plan for plan, cost in costs.items() if cost.alive <= budget]
        if within:
            return min(within, key=lambda plan: (costs[plan].moved, costs[plan].alive, costs[plan].kernels))
        return min(costs, key=lambda plan: (costs[plan].alive, costs[plan].moved, costs[plan].kernels))
    most = 4 * max(min(cost.moved for cost in costs.values()), max(cost.alive for cost in costs.values()))
    few = _FEW_KERNELS + min(cost.kernels for cost in costs.values())
    linear = [plan for plan, cost in costs.items() if cost.moved <= most and cost.kernels <= few] or list(costs)
    return min(linear, key=lambda plan: (costs[plan].alive, costs[plan].moved, costs[plan].kernels))


@dataclass(frozen=True, slots=True)
class Event:
    """A change of the trace at the position of a region.

    Attributes:
        position: of the region.
        inputs: the sums that are read.
        sums: the sums that are computed, in order.
        outputs: the sums that are written.
    """

    position: int
    inputs: tuple[str, ...]
    sums: tuple[str, ...]
    outputs: tuple[str, ...]


class Step(Event):
    """A new call before the region. It adds terms to a sum that it takes, or to the head, and returns its last sum."""

    __slots__ = ()


class RegionChange(Event):
    """A change of the region: sums become inputs, others are still computed by itself, and some of them passed on."""

    __slots__ = ()


def events_of(stream: Stream) -> dict[ResidualPlan, tuple[Event, ...]]:
    """Returns the events of each plan that changes regions, in order.

    Each sum is given at most once, before all events that take it. If sums are used in the order in which they are
    added up, a segment is a single sum, and only carrying is possible.
    """
    index = StreamWalk(stream)
    found = {ResidualPlan.CARRY: _Carrying(index).order()}
    if index.goes_back():
        found[ResidualPlan.SEGMENTED] = tuple(_segments(index))
    return found


class StreamWalk:
    """An index of a stream. ``depth`` is the number of sums in the chain from the head to a sum."""

    def __init__(self, stream: Stream):
        self.stream = stream
        self.sums = {sum_.name: sum_ for sum_ in stream.sums}
        self.depth: dict[str, int] = {}
        for sum_ in stream.sums:
            self.depth[sum_.name] = self.depth[sum_.parent] + 1 if sum_.parent else 1
        grouped = groupby(stream.uses, lambda use: use.position)
        self.uses = [
            (position, sorted((use.sum for use in uses), key=self.depth.__getitem__)) for position, uses in grouped
        ]

    def goes_back(self) -> bool:
        """True if a sum is used after a deeper one."""
        deepest = [max(self.depth[sum_] for sum_ in uses) for _, uses in self.uses]
        return any(later < earlier for earlier, later in pairwise(deepest))

    def path(self, sum_: str, held: Collection[str]) -> tuple[str | None, list[str]]:
        """Returns the nearest held sum from which a sum can start (itself, if held), and the sums from there to it."""
        path: list[str] = []
        at: str | None = sum_
        while at is not None and at not in held:
            path.append(at)
            at = self.sums[at].parent
        return at, path[::-1]


@dataclass(frozen=True, slots=True)
class _Visit:
    """A region, the starting points of its sums, and the paths from there to the sums that it uses."""

    position: int
    uses: list[str]
    inputs: tuple[str, ...]
    paths: list[tuple[str | None, list[str]]]
    sums: tuple[str, ...]


class _Carrying:
    """Computes each sum once, where it is used first, and passes it on."""

    def __init__(self, index: StreamWalk):
        self.index = index
        self.given: set[str] = set()  # the sums computed so far
        self.passed: set[str] = set()  # to other calls

    def order(self) -> tuple[Event, ...]:
        """Returns the events, in order."""
        visits = [self._visit(position, uses) for position, uses in self.index.uses]
        return tuple(event for visit in visits for event in self._events(visit))

    def _visit(self, position: int, uses: list[str]) -> _Visit:
        inputs: dict[str, None] = {}
        paths: list[tuple[str | None, list[str]]] = []
        sums: dict[str, None] = {}
        for use in uses:
            start, path = self.index.path(use, self.given)
            if start is not None and start not in sums:
                inputs[start] = None
            paths.append((start, path))
            sums.update(dict.fromkeys(path))
            self.given.update(path)
        self.passed.update(inputs)
        return _Visit(position, uses, tuple(inputs), paths, tuple(sums))

    def _events(self, visit: _Visit) -> Iterator[Event]:
        outputs = tuple(sum_ for sum_ in visit.sums if sum_ in self.passed)
        if set(outputs) <= set(visit.uses):
            yield RegionChange(visit.position, visit.inputs, visit.sums, outputs)
            return
        # The region would return sums that it does not use itself, perhaps many: separate calls compute them.
        stops = self.passed.union(visit.uses, (start for start, _ in visit.paths if start))
        for start, path in visit.paths:
            yield from _steps(visit.position, start, path, stops)
        yield RegionChange(visit.position, tuple(visit.uses), (), ())


def _steps(position: int, start: str | None, path: Iterable[str], stops: Collection[str]) -> Iterator[Step]:
    """Yields steps along a path that return each sum in ``stops``."""
    passed: list[str] = []
    for sum_ in path:
        passed.append(sum_)
        if sum_ in stops:
            yield Step(position, (start,) if start else (), tuple(passed), (sum_,))
            start, passed = sum_, []


def _segments(index: StreamWalk) -> Iterator[Event]:
    """Yields events that keep every k-th sum, and rebuild the used sums from the nearest one, a segment at a time."""
    width = max(1, isqrt(max(index.depth[use.sum] for use in index.stream.uses)))
    until: dict[str, int] = {}  # the position of a sum's last use, for itself or to rebuild others
    marks = {sum_ for sum_, depth in index.depth.items() if depth % width == 0}
    kept = {use.sum: index.path(use.sum, marks)[0] for use in index.stream.uses}
    for use in index.stream.uses:
        until.update({sum_: use.position for sum_ in (use.sum, kept[use.sum]) if sum_})
    held: set[str] = set()
    for position, uses in index.uses:
        for wanted in uses:
            start, path = index.path(wanted, held)
            below = index.depth[wanted] - index.depth[wanted] % width
            stops = {
                sum_
                for sum_ in path
                if until.get(sum_, -1) > position and (index.depth[sum_] >= below or sum_ in marks)
            }
            held |= stops | {wanted}
            yield from _steps(position, start, path, stops | {wanted})
        yield RegionChange(position, tuple(uses), (), ())
        ended = [sum_ for wanted in uses for sum_ in (wanted, kept[wanted]) if sum_]
        held.difference_update(sum_ for sum_ in ended if until[sum_] <= position)


def costs_of(stream: Stream) -> dict[ResidualPlan, Cost]:
    """Returns the cost of each possible plan for a stream. ``moved`` counts terms and sums, read and written.

    Sums that are rounded to another dtype on the way cannot be folded.
    """
    index = StreamWalk(stream)
    costs = dict(zip((ResidualPlan.INLINE, ResidualPlan.FOLD), _from_scratch(index), strict=True))
    if not all(sum_.direct for sum_ in stream.sums):
        del costs[ResidualPlan.FOLD]
    return costs | {plan: _cost(index, events) for plan, events in events_of(stream).items()}


def _from_scratch(index: StreamWalk) -> tuple[Cost, Cost]:
    """Returns the costs of adding up each region's sums anew, inline and by folds."""
    moved = extra = largest = 0
    arities: set[int] = set()
    widths: set[int] = set()
    for _, uses in index.uses:
        sums: set[str] = set()
        for use in uses:
            sums.update(index.path(use, sums)[1])
        size = max(index.sums[use].size for use in uses)
        folds = fold_widths(len(sums))
        moved += sum(index.sums[sum_].term_size for sum_ in sums)
        extra += 2 * size * len(folds)
        largest = max(largest, size)
        arities.add(len(sums))
        widths.update(folds)
    return Cost(moved, 0, len(arities)), Cost(moved + extra, largest, len(widths) + 1)


def _cost(index: StreamWalk, events: Sequence[Event]) -> Cost:
    kernels = {(type(event), len(event.sums), len(event.inputs), len(event.outputs)) for event in events}
    moved = 0
    for event in events:
        moved += sum(index.sums[sum_].term_size for sum_ in event.sums)
        moved += sum(index.sums[sum_].size for sum_ in (*event.inputs, *event.outputs))
    return Cost(moved, _most_alive(index, events), len(kernels))


def _most_alive(index: StreamWalk, events: Sequence[Event]) -> int:
    """Returns the peak bytes of given sums, each alive until it is last taken."""
    taken = {sum_: number for number, event in enumerate(events) for sum_ in event.inputs}
    most = alive = 0
    for number, event in enumerate(events):
        alive += sum(index.sums[sum_].size for sum_ in event.outputs)
        most = max(most, alive)
        alive -= sum(index.sums[sum_].size for sum_ in dict.fromkeys(event.inputs) if taken[sum_] == number)
    return most
