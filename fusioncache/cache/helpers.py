"""Those who compile for this process while it does something else, as the cache sees them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from fusioncache.ir import Instance, Key
from fusioncache.ir.request import Request


@dataclass(frozen=True, slots=True)
class Ask:
    """What a call is going to ask the store for.

    Attributes:
        key: under which the store will have it.
        request: what is asked for.
        instance: the region that is compiled if it is not there.
    """

    key: Key
    request: Request
    instance: Instance


@dataclass(frozen=True, slots=True)
class Wait:
    """How a call came by what it asked a helper for.

    Attributes:
        beside: whether a helper made it.
        here: seconds that this process spent on making it before, while it waited for something else.
        on_others: seconds of this wait that this process spent on making other things.
        on_start: seconds of this wait in which a compiler started, in this process or beside it.
    """

    beside: bool = False
    here: float = 0.0
    on_others: float = 0.0
    on_start: float = 0.0


class Helpers(Protocol):
    """Compiles what it is asked for, and puts it into the store. Nothing depends on it, and it raises nothing."""

    def hand_over(self, asks: Sequence[Ask]) -> int:
        """Has these compiled, as far as the store does not have them, and returns how many will be."""

    def expect(self, asks: Callable[[], Sequence[Ask]], handed_over: Callable[[int], None]) -> None:
        """Has these compiled, and says how many, if anything that calls ask for turns out to be missing.

        For a program that was loaded the store has them all, as a rule. Then nothing is asked.
        """

    def note_missing(self) -> bool:
        """Hands over what was expected, as the store lacks something that a call asks for; returns whether it did."""

    def is_done(self, key: Key) -> bool:
        """Tells whether nobody is at this any more, or going to be: it is made, or never will be."""

    def wait_for(self, key: Key) -> Wait:
        """Waits for a helper that makes this, for a bounded time, if there is one.

        Meanwhile this process makes something else that nobody has begun. Afterwards no helper begins with what was
        asked for any more, so that whoever asks can compile it.
        """
