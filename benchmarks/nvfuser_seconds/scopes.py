"""What nvFuser's own trace says of each call: how often it was in a function, and how many seconds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.warm_start.profile import read_events

_CALL = "FusionExecutorCache::runFusionWithInputs"


@dataclass(slots=True)
class Scope:
    """A function in one call.

    Attributes:
        count: how often it was entered.
        seconds: in it, calls of it by itself counted once.
        own: less those in other functions of the trace.
    """

    count: int = 0
    seconds: float = 0.0
    own: float = 0.0


@dataclass(slots=True)
class _Thread:
    stack: list[tuple[str, float]] = field(default_factory=list)
    inner: list[float] = field(default_factory=lambda: [0.0])


def read_calls(file: Path) -> Iterator[dict[str, Scope]]:
    """Returns the functions of each call of a definition, in their order. What other threads did meanwhile counts."""
    threads: dict[str, _Thread] = defaultdict(_Thread)
    scopes: dict[str, Scope] = defaultdict(Scope)
    for name, thread_id, moment, is_begin in read_events(file):
        thread = threads[thread_id]
        if is_begin:
            thread.stack.append((name, moment))
            thread.inner.append(0.0)
        elif thread.stack:
            name, begin = thread.stack.pop()
            whole, inner = moment - begin, thread.inner.pop()
            thread.inner[-1] += whole
            scope = scopes[name]
            scope.count += 1
            scope.own += whole - inner
            if all(name != outer for outer, _ in thread.stack):
                scope.seconds += whole
                if name == _CALL:
                    yield dict(scopes)
                    scopes.clear()
