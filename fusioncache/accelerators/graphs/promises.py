"""The promise that what a forward program saved stays where it is until its backward took it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fusioncache.accelerators.graphs.captured_forward import CapturedForward


class Promise:
    """Ends when the backward program has run for the last time, or when autograd forgets it.

    Args:
        captured: the forward program that saved the tensors.
        outside: where those are that do not lie in the pool, and how.
        release: ends it.

    Attributes:
        captured: the same.
        outside: the same.
    """

    __slots__ = ("_release", "captured", "outside")

    def __init__(self, captured: CapturedForward, outside: object, release: Callable[[], None]):
        self.captured = captured
        self.outside = outside
        self._release: Callable[[], None] | None = release

    @property
    def is_over(self) -> bool:
        """Tells whether other programs may have overwritten the tensors."""
        return self._release is None

    def end(self) -> None:
        """Ends it, if it is not over."""
        release, self._release = self._release, None
        if release is not None:
            release()

    def __del__(self) -> None:
        self.end()


class SavedValues(tuple[Any, ...]):
    """What a program saves for its backward besides tensors, and the promise that these stay.

    Autograd keeps it as long as the tensors, and gives it back with them.

    Attributes:
        promise: the promise.
    """

    promise: Promise

    @classmethod
    def make(cls, values: Iterable[Any], promise: Promise) -> SavedValues:
        """Returns the values with a promise."""
        made = cls(values)
        made.promise = promise
        return made


def find_promise(values: object) -> Promise | None:
    """Returns the promise that came with what a program saved; None if it ran without a graph."""
    return values.promise if isinstance(values, SavedValues) else None
