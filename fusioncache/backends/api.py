"""What a backend compiled, with what another process needs to load it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Run = Callable[[Sequence[Any]], Sequence[Any]]
"""Takes the arguments as one sequence and returns the outputs."""


class NotPersistable(Exception):
    """Compiled code that cannot be loaded by another process. The message is the reason: a short phrase."""


class NotPersistableNow(NotPersistable):
    """The same, for a reason that lies in this process and not in the code: another time it may be kept."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A compiled function.

    Attributes:
        run: the function, ready.
        artifacts: what makes the same function in another process; None if nothing does.
        reason: why nothing does.
        lasting: whether the same is true of another time, as far as is known.
    """

    run: Run
    artifacts: Mapping[str, bytes] | None
    reason: str | None
    lasting: bool = True
