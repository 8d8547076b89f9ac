"""The lines of functions that are in no file, for tracebacks and for those that read a function's source."""

from __future__ import annotations

import linecache
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import overload


class SourceLines(Sequence[str]):
    """The lines of a text, which is asked for each time: most texts are never looked at.

    Args:
        find_text: returns it.
    """

    __slots__ = ("_find_text",)

    def __init__(self, find_text: Callable[[], str]):
        self._find_text = find_text

    def _split(self) -> list[str]:
        return self._find_text().splitlines(keepends=True)

    def __len__(self) -> int:
        return len(self._split())

    def __iter__(self) -> Iterator[str]:
        return iter(self._split())

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        """Returns one line, or some of them."""
        return self._split()[index]


def show_lines(function: Callable[..., object], file: str, find_text: Callable[[], str]) -> None:
    """Has ``linecache`` know the lines of a function for as long as it lives.

    Args:
        function: it.
        file: the name of the file that its code seems to come from.
        find_text: returns the text of that file.
    """
    # Without a time the lines stay, whatever the file system says of such a file.
    linecache.cache[file] = 0, None, SourceLines(find_text), file  # type: ignore[assignment]
    weakref.finalize(function, linecache.cache.pop, file, None).atexit = False
