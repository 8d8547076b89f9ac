"""Which calls keep their order, and which travel with the collectives."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from fusioncache.accelerators.schedule.calls import COLLECTIVES, CallNode, Kind
from fusioncache.accelerators.schedule.dependences import find_makers

_MOVING = COLLECTIVES | {Kind.WAIT}


def find_movable(calls: Sequence[CallNode]) -> tuple[bool, ...]:
    """Returns of each call whether it moves; all others keep their order among each other.

    There move: collectives and their waits; views of what was waited for, to their first use; and preparations. These
    are calls of whose only input nobody else has a use, and whose results only collectives take: the division of a
    gradient by the number of ranks, say.
    """
    makers, takers = find_makers(calls), _find_takers(calls)
    movable = [call.kind in _MOVING for call in calls]
    for index, call in enumerate(calls):
        movable[index] |= call.kind is Kind.VIEW and _is_late_view(call, calls, makers, movable)
    prepares = [False] * len(calls)
    for index in reversed(range(len(calls))):
        prepares[index] = not movable[index] and _is_preparation(index, calls, takers, prepares)
    return tuple(moves or prepared for moves, prepared in zip(movable, prepares, strict=True))


def _find_takers(calls: Sequence[CallNode]) -> Mapping[str, Sequence[int]]:
    takers: dict[str, list[int]] = defaultdict(list)
    for index, call in enumerate(calls):
        for name in dict.fromkeys(call.takes):
            takers[name].append(index)
    return takers


def _is_late_view(
    call: CallNode, calls: Sequence[CallNode], makers: Mapping[str, int], movable: Sequence[bool]
) -> bool:
    """Tells whether a view is of nothing but what was waited for, or of such views."""
    if call.fixed or call.writes or not call.takes:
        return False
    found = [makers.get(name) for name in call.takes]
    return all(maker is not None and movable[maker] and calls[maker].kind not in COLLECTIVES for maker in found)


def _is_preparation(
    index: int, calls: Sequence[CallNode], takers: Mapping[str, Sequence[int]], prepares: Sequence[bool]
) -> bool:
    call = calls[index]
    if call.fixed or call.writes or not call.gives or len(set(call.takes)) != 1:
        return False
    users = [user for name in call.gives for user in takers.get(name, ())]
    only_use = len(takers[call.takes[0]]) == 1
    return only_use and bool(users) and all(calls[user].kind in COLLECTIVES or prepares[user] for user in users)
