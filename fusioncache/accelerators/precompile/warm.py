"""Compilation ahead of use: of all requests in a store."""

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
"""Called with the number of finished templates and the number of all."""

_WRONG = (DAMAGED, FAILED, NOT_STORED, DIED, NO_WORKER.reason)


@dataclass(frozen=True, slots=True)
class Warmed:
    """The result of ``warm``.

    Attributes:
        known: the number of entries that backends compiled. Those of one template for several versions are one.
        ready: the number of templates that were stored for this environment before.
        compiled: the number of templates that were compiled and stored; in a dry run, that would be compiled.
        refused: the number of other templates, by reason.
        temporary: how many of ``refused`` were refused temporarily: a later try may succeed with nothing changed.
        seconds: the time taken.
    """

    known: int
    ready: int
    compiled: int
    refused: Mapping[str, int]
    temporary: int
    seconds: float

    @property
    def templates(self) -> int:
        """The number of templates that were considered."""
        return self.ready + self.compiled + sum(self.refused.values())

    @property
    def failed(self) -> int:
        """The number of templates that were refused because of an error, not as ones of another environment."""
        return sum(number for reason, number in self.refused.items() if reason.startswith(_WRONG))


def warm(
    store: Store | str | Path | None = None,
    *,
    jobs: int = 1,
    progress: Progress | None = None,
    dry_run: bool = False,
    lengths: Iterable[int] = (),
) -> Warmed:
    """Compiles every template of a store for this device and these versions, unless it is stored for them.

    A store has the templates of any process, also of other versions or another machine. A job that starts later with
    the same settings then loads them. Meanwhile torch's settings, such as the default dtype and the precision of
    products, are those of the process that first requested the template.

    Args:
        store: a store or its directory; by default the one that caches use.
        jobs: the number of processes that compile. With 1 this process does. Others have Python's initial settings:
            changes of torch in this process, such as the number of threads, do not apply there.
        progress: called with the number of finished templates and of all.
        dry_run: whether to compile nothing and only report what would be compiled.
        lengths: further lengths. If programs of a model are stored at two lengths, its templates are compiled for these
            too, for a job's first call at such a length. Backends that store code for any sizes need none.

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
    entries, tasks, refused = survey(opened)
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
            counts["temporary"] += outcome.temporary
        if progress:
            progress(done, len(tasks))
    seconds = time.perf_counter() - start
    left_out = MappingProxyType(dict(refused))
    return Warmed(entries, counts["ready"], counts["compiled"], left_out, counts["temporary"], seconds)


def _open(store: Store | str | Path | None) -> Store:
    if isinstance(store, Store):
        return store
    if store is not None and not isinstance(store, str | Path):
        raise TypeError(f"store must be a fusioncache.store.Store, a directory or None, got {store!r}")
    if store is not None and not Path(store).is_dir():
        raise FileNotFoundError(f"there is no store in {store}")
    return Store.open(store)


def compile_tasks(store: Store, tasks: Sequence[CompileTask], jobs: int, dry_run: bool) -> Iterator[TaskOutcome]:
    """Compiles tasks in this process or in workers, and yields the outcome of each.

    Args:
        store: receives the executables.
        tasks: the tasks. Workers start with those that probably take longest.
        jobs: the number of processes that compile.
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
