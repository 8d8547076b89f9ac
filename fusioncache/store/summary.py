"""What a store says of itself: one line of a list, one line of a log."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fusioncache.store.entry import Entry


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a store.

    Attributes:
        time: seconds since the epoch.
        pid: the process that it happened in.
        host: the machine that it ran on.
        what: ``hit``, ``miss``, ``save``, ``pull`` or ``bypass``.
        id: key's digest and backend; empty if it was about no entry.
        reason: of a bypass.
        seconds: that it took.
        nearest: of a miss, the digest of the nearest key that was stored for the same graph; empty if there was none.
    """

    time: float
    pid: int
    host: str
    what: str
    id: str
    reason: str
    seconds: float
    nearest: str = ""


@dataclass(frozen=True, slots=True)
class Summary:
    """An entry in a list.

    Attributes:
        digest: of the key.
        backend: which made the artifacts.
        name: of the template.
        created: seconds since the epoch.
        seconds: that it took to compile.
        pid: the process that stored it.
        host: the machine that it ran on.
        artifacts: how many there are.
        size: of the artifacts, in bytes.
    """

    digest: str
    backend: str
    name: str
    created: float
    seconds: float
    pid: int
    host: str
    artifacts: int
    size: int


def newest_first(summaries: Iterable[Summary]) -> tuple[Summary, ...]:
    """The order of a list."""
    return tuple(sorted(summaries, key=lambda summary: (-summary.created, summary.digest, summary.backend)))


def summary(entry: Entry) -> Summary:
    """What a list says of an entry."""
    size = sum(artifact.size for artifact in entry.artifacts)
    return Summary(
        entry.digest,
        entry.backend,
        entry.name,
        entry.created,
        entry.seconds,
        entry.pid,
        entry.host,
        len(entry.artifacts),
        size,
    )
