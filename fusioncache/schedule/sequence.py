"""The sequence of collectives, which has to be the same on every rank: else they wait for each other for ever."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import zip_longest

from fusioncache.schedule.calls import COLLECTIVES, CallGraph
from fusioncache.schedule.order import Schedule


def list_messages(graph: CallGraph, schedule: Schedule) -> tuple[str, ...]:
    """Returns a line for each step that starts collectives: what must be the same on every rank."""
    return tuple(
        " + ".join(f"{graph.calls[index].kind} {graph.calls[index].message}" for index in step)
        for step in schedule.steps
        if graph.calls[step[0]].kind in COLLECTIVES
    )


def digest_messages(messages: Sequence[str]) -> str:
    """Returns the digest of a sequence of collectives."""
    return hashlib.sha256("\n".join(messages).encode()).hexdigest()


def explain_first_difference(ours: Sequence[str], theirs: Sequence[str]) -> str:
    """Returns in what two sequences first differ, in words; nothing if they are equal."""
    for number, (our, their) in enumerate(zip_longest(ours, theirs), start=1):
        if our != their:
            return f"collective {number} is {our or 'none'} here and {their or 'none'} there"
    return ""
