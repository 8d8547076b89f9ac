"""Residual streams: sums that several regions of a trace compute anew, each from the same terms."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fusioncache.accelerators.residual.sums import Call, Sum, Sums
from fusioncache.ir import Op, operands
from fusioncache.ir.arithmetic import bits_depend_on_kernel

FEWEST_SUMS = 3
"""How many sums must be computed twice for a stream to be one. With fewer there is hardly anything to save."""


@dataclass(frozen=True, slots=True)
class Want:
    """A sum that the call at this position uses for something else than the next sum."""

    position: int
    sum: str


@dataclass(frozen=True, slots=True)
class Stream:
    """Sums that start from one another.

    Attributes:
        head: the value that the first sum starts from.
        sums: each behind the one that it starts from. Several may start from one.
        wants: in the order of the trace.
        idle: the positions of the calls that compute some of the sums without using them.
        varies: whether one of the calls that use a sum may compute other bits where it is given the sum.
    """

    head: str
    sums: tuple[Sum, ...]
    wants: tuple[Want, ...]
    idle: tuple[int, ...] = ()
    varies: bool = False

    def __str__(self) -> str:
        positions: dict[str, list[str]] = {sum_.name: [] for sum_ in self.sums}
        for want in self.wants:
            positions[want.sum].append(str(want.position))
        lines = [f"stream from {self.head}: {len(self.sums)} sums, wanted {len(self.wants)} times"]
        for sum_ in self.sums:
            operands_ = ([sum_.parent] if sum_.parent else []) + list(sum_.terms)
            where = ", ".join(positions[sum_.name]) or "nowhere"
            lines.append(f"  {sum_.name}: {sum_.dtype} = {' + '.join(operands_)}, {sum_.size} B, wanted at {where}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Around:
    """What the rest of a trace does with the values of its fused calls.

    Attributes:
        defined: names of values that something else than the calls defines.
        written: names of values that are written in place.
        waiting: names of values that the trace computes and that only the calls use, with the position from which on
            they are available.
    """

    defined: Collection[str] = frozenset()
    written: Collection[str] = frozenset()
    waiting: Mapping[str, int] = field(default_factory=dict)


def streams_of(calls: Sequence[Call], around: Around = Around()) -> tuple[Stream, ...]:
    """Returns the residual streams of a trace. Linear in the ops of its regions.

    A sum is an add of region inputs, or conversions of them, and of another sum: nothing that a compiler could contract
    with the add into one rounding. A value that some region computes in another way, or from a product, is not a sum.

    Args:
        calls: the fused calls, in the order of the trace.
        around: the rest of the trace.
    """
    values = Sums(around.defined, around.written)
    for call in calls:
        values.read(call)
    families = [f for f in _families(values.sums(around.waiting)) if _count_recomputed(f, values) >= FEWEST_SUMS]
    home = {sum_.name: number for number, family in enumerate(families) for sum_ in family}
    wants: list[list[Want]] = [[] for _ in families]
    idle: list[list[int]] = [[] for _ in families]
    varying: set[int] = set()
    for call in calls if families else ():
        wanted = list(_wants(call, home))
        for name in wanted:
            wants[home[name]].append(Want(call.position, name))
        results = call.names[call.region.first_result :]
        inside = {home[name] for name in results if name in home}
        for number in inside - {home[name] for name in wanted}:
            idle[number].append(call.position)
        if inside and bits_depend_on_kernel(call.region, call.arithmetic):
            varying |= inside
    return tuple(
        Stream(family[0].terms[0], tuple(family), tuple(wants[number]), tuple(idle[number]), number in varying)
        for number, family in enumerate(families)
        if wants[number]
    )


def _families(sums: Iterable[Sum]) -> list[list[Sum]]:
    """Returns the sums by the first one that they come from."""
    root: dict[str, str] = {}
    families: dict[str, list[Sum]] = {}
    for sum_ in sums:
        root[sum_.name] = root[sum_.parent] if sum_.parent else sum_.name
        families.setdefault(root[sum_.name], []).append(sum_)
    return list(families.values())


def _count_recomputed(family: Iterable[Sum], values: Sums) -> int:
    return sum(values.calls(sum_.name) > 1 for sum_ in family)


def _wants(call: Call, sums: Collection[str]) -> Iterator[str]:
    """Yields the sums that a call computes and uses, except those that it uses for other sums only."""
    producers: list[Op | None] = [None] * call.region.first_result
    for op in call.region.ops:
        producers += [op] * len(op.outputs)
    seen: set[int] = set()
    stack = list(call.region.outputs)
    while stack:
        value = stack.pop()
        producer = producers[value]
        if producer is None or value in seen:
            continue
        seen.add(value)
        if call.names[value] in sums:
            yield call.names[value]
        else:
            stack.extend(index for _, index in operands(producer))
