"""What one process of the comparison of traces has to do, and the names of what it compares. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.zoo.spec import ZooSpec

KINDS = ("again", "all", "only", "without")
"""Which sets of groups are installed: none a second time, all, each by itself, all but each."""


@dataclass(frozen=True, slots=True)
class Spec(ZooSpec):
    """One model at one depth.

    Attributes:
        kinds: some of ``KINDS``.
    """

    kinds: Sequence[str]


def name_sets(kinds: Sequence[str], groups: Sequence[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yields the sets of groups of shortcuts that are compared with Thunder's own tracing, each with its name.

    Args:
        kinds: some of ``KINDS``.
        groups: the names of all groups.
    """
    if "again" in kinds:
        yield "none, again", ()
    if "all" in kinds:
        yield "all", tuple(groups)
    if "only" in kinds:
        yield from ((f"only {name}", (name,)) for name in groups)
    if "without" in kinds and len(groups) > 1:
        yield from ((f"without {name}", tuple(other for other in groups if other != name)) for name in groups)
