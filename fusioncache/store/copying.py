"""Many files at once, and what became of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from types import MappingProxyType

from fusioncache.process import forks
from fusioncache.store.errors import Refusal

_AT_ONCE = 8

Progress = Callable[[int, int], None]
"""Is told how many files were dealt with, and of how many. It is called on the caller's thread."""


@dataclass(frozen=True, slots=True)
class Copied:
    """What was brought, or would be.

    Attributes:
        entries: how many.
        objects: how many.
        bytes: of both.
        skipped: entries that were there already.
        refused: entries and objects that were left out, by reason.
    """

    entries: int
    objects: int
    bytes: int
    skipped: int
    refused: Mapping[str, int]


class Tally:
    """Counts on any thread."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._objects: set[str] = set()
        self._lock = forks.lock()

    def add(self, **counts: int) -> None:
        """Adds to the fields of ``Copied`` with these names."""
        with self._lock:
            self._counts.update(counts)

    def add_objects(self, sizes: Mapping[str, int]) -> None:
        """Adds objects with their bytes by digest. One that several entries need is one."""
        with self._lock:
            new = sizes.keys() - self._objects
            self._objects |= new
            self._counts.update(objects=len(new), bytes=sum(sizes[digest] for digest in new))

    def refuse(self, refusal: Refusal) -> None:
        """Counts something that was left out."""
        with self._lock:
            self._refused[refusal.reason] += 1

    def copied(self) -> Copied:
        """What was counted by now."""
        count = self._counts
        refused = MappingProxyType(dict(self._refused))
        return Copied(count["entries"], count["objects"], count["bytes"], count["skipped"], refused)


def steps(progress: Progress | None, total: int) -> Callable[[], None]:
    """What to call after each of so many files."""
    done = 0

    def step() -> None:
        nonlocal done
        done += 1
        if progress:
            progress(done, total)

    if progress:
        progress(0, total)
    return step


def each[T](
    work: Callable[[T], None], items: Iterable[T], tally: Tally, step: Callable[[], object] = lambda: None
) -> None:
    """Does all of it, several at once. What is refused is counted; anything else that is raised ends it."""

    def guarded(item: T) -> None:
        try:
            work(item)
        except Refusal as refusal:
            tally.refuse(refusal)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        try:
            for future in as_completed([pool.submit(guarded, item) for item in items]):
                future.result()
                step()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
