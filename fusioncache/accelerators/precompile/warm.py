"""Compiling ahead of use: all that a store has seen asked for."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from fusioncache.accelerators.precompile.entry_compiler import (
    DAMAGED,
    DIED,
    FAILED,
    NO_WORKER,
    NOT_STORED,
    CompileTask,
    EntryCompiler,
    TaskOutcome,
    survey,
)
from fusioncache.accelerators.precompile.pool import CompilePool
from fusioncache.accelerators.sizes.scaling import check_lengths
from fusioncache.store import Store
from fusioncache.store.store import COMPILE_SECONDS

Progress = Callable[[int, int], None]
"""Is told how many templates are done, and how many there are."""

_WRONG = (DAMAGED, FAILED, NOT_STORED, DIED, NO_WORKER.reason)


@dataclass(frozen=True, slots=True)
class Warmed:
    """The result of compiling ahead what a store's entries ask for.

    Attributes:
        known: entries that were looked at. Those of other versions of one template are one template.
        ready: templates that were compiled for this very environment before.
        compiled: templates that were compiled now and are kept; in a dry run, that would be compiled.
        refused: how many others there are, by reason.
        passing: how many of these may be compiled another time, with nothing changed, because it was not for good.
        seconds: that it took.
    """

    known: int
    ready: int
    compiled: int
    refused: Mapping[str, int]
    passing: int
    seconds: float

    @property
    def templates(self) -> int:
        """How many were looked at."""
        return self.ready + self.compiled + sum(self.refused.values())

    @property
    def failed(self) -> int:
        """How many were refused because something is wrong, rather than because they are not for here."""
        return sum(number for reason, number in self.refused.items() if reason.startswith(_WRONG))


def warm(
    store: Store | str | Path | None = None,
    *,
    jobs: int = 1,
    progress: Progress | None = None,
    dry_run: bool = False,
    lengths: Iterable[int] = (),
) -> Warmed:
    """Compiles every template that a store knows for this device and these versions, where it is not there yet.

    A store knows what any process compiled into it, of other versions too, or on another machine. A job that starts
    afterwards with the same settings loads what it would have compiled. torch's own settings, such as the default dtype
    and the precision of products, are for that time those of the process that asked first.

    Args:
        store: a store or its directory; by default the one that caches use.
        jobs: how many processes compile. With 1 it is this one; others have the settings with which Python starts, so
            that what was changed in torch here, such as the number of threads, is not changed there.
        progress: is told how far it is.
        dry_run: whether to compile nothing and say what would be compiled.
        lengths: at which each model whose programs are known at two lengths has its templates compiled too, so that a
            job finds them at its first call of that length. Backends that store code for any sizes need none.

    Raises:
        TypeError: if ``store`` has another type, or a length is not an integer.
        ValueError: if ``jobs`` is less than 1, a length is less than 2, or there are more than 256.
        FileNotFoundError: if there is no such directory.
    """
    if jobs < 1:
        raise ValueError(f"jobs must be at least 1, got {jobs}")
    wanted = check_lengths(lengths)
    start = time.perf_counter()
    opened = _open(store)
    found = survey(opened)
    tasks, refused = found.tasks, found.refused
    if wanted:
        from fusioncache.accelerators.precompile.unseen_lengths import list_unseen  # loads torch

        unseen, without = list_unseen(opened, tasks, wanted)
        refused += without
        tasks += unseen
    if progress:
        progress(0, len(tasks))
    counts: Counter[str] = Counter()
    for done, outcome in enumerate(compile_tasks(opened, tasks, 1 if dry_run else jobs, dry_run), 1):
        counts[outcome.result] += 1
        if outcome.result == "refused":
            refused[outcome.reason] += 1
            counts["passing"] += outcome.passing
        if progress:
            progress(done, len(tasks))
    seconds = time.perf_counter() - start
    left_out = MappingProxyType(dict(refused))
    return Warmed(found.entries, counts["ready"], counts["compiled"], left_out, counts["passing"], seconds)


def _open(store: Store | str | Path | None) -> Store:
    if isinstance(store, Store):
        return store
    if store is not None and not isinstance(store, str | Path):
        raise TypeError(f"store must be a fusioncache.store.Store, a directory or None, got {store!r}")
    if store is not None and not Path(store).is_dir():
        raise FileNotFoundError(f"there is no store in {store}")
    return Store.open(store)


def compile_tasks(store: Store, tasks: Sequence[CompileTask], jobs: int, dry_run: bool) -> Iterator[TaskOutcome]:
    """Compiles in this process or in workers, and yields what became of each task.

    Args:
        store: gets the executables.
        tasks: workers compile first what is likely to take longest.
        jobs: how many processes compile.
        dry_run: whether to compile nothing.
    """
    if jobs > 1 and tasks and store.directory is not None:
        backend = Counter(task.request.backend for task in tasks).most_common(1)[0][0]
        jobs = min(jobs, len(tasks))
        pool = CompilePool(store.directory, jobs, backend, patience=COMPILE_SECONDS, quiet=False)
        try:
            yield from (future.result() for future in as_completed(pool.submit(tasks)))
        finally:
            pool.end()
    elif tasks:
        yield from map(EntryCompiler(store, dry_run=dry_run).compile, tasks)
