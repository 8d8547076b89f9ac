"""What is scheduled: calls that compute, collectives, and the waits for these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Kind(StrEnum):
    """What a call is to a schedule."""

    COMPUTE = "compute"
    """Computes, or does anything else that is not one of the others."""
    VIEW = "view"
    """Gives another view of what it takes, and computes nothing."""
    GATHER = "gather"
    """Starts a collective that makes something larger of what each rank has."""
    REDUCE = "reduce"
    """Starts a collective that adds up what the ranks have."""
    WAIT = "wait"
    """Ends a collective: takes what that gave, and gives what may be used."""
    JOINED = "joined"
    """Computes and exchanges in one: a collective that nothing waits for, and that is not moved."""


COLLECTIVES = frozenset({Kind.GATHER, Kind.REDUCE})
"""What is moved."""
EXCHANGES = COLLECTIVES | {Kind.JOINED}
"""What all ranks have to run in the same order."""


@dataclass(frozen=True, slots=True)
class CallNode:
    """One call. Values have names, and each is given by one call at most.

    Attributes:
        kind: what it is to a schedule.
        name: what people call it; for them only.
        takes: the values that it reads.
        gives: the values that it makes.
        writes: those of the taken values into whose memory it writes; a collective may do so until its wait.
        lies_in: those of the taken values in whose memory what it gives may lie.
        fixed: whether it may not move although it seems to change nothing: it has an effect, or takes random numbers.
        channel: collectives of one channel may travel together; one that has none travels alone.
        message: tells of a collective what must be the same on every rank.
    """

    kind: Kind
    name: str
    takes: tuple[str, ...] = ()
    gives: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    lies_in: tuple[str, ...] = ()
    fixed: bool = False
    channel: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class CallGraph:
    """Calls in the order that is given, and how many bytes the values have that they make.

    What no call gives is an input: its memory is the caller's, and not counted. The last call that computes is what
    returns, or else the values that nobody takes are not kept.

    Attributes:
        calls: in the order given, in which each value is given before it is taken.
        sizes: the bytes of values; one that is missing has none.
    """

    calls: tuple[CallNode, ...]
    sizes: Mapping[str, int] = field(default_factory=dict)

    def bytes_of(self, *names: str) -> int:
        """Returns how many bytes these values have."""
        return sum(self.sizes.get(name, 0) for name in names)

    def message_bytes(self, index: int) -> int:
        """Returns how many bytes a collective moves: of what it takes or of what it gives, whichever is more."""
        call = self.calls[index]
        return max(self.bytes_of(*call.takes), self.bytes_of(*call.gives))
