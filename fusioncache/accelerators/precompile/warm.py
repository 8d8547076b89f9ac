"""Compiling ahead of use: all that a store has seen asked for.

The command line notes that all of a store is ready for these surroundings, so that no compiler is started to find that
out again. It is for processes that change no settings of compilers in their code.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import as_completed
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from fusioncache.accelerators.precompile.entry_compiler import (
    DIED,
    FAILED,
    NO_WORKER,
    NOT_STORED,
    EntryCompiler,
    TaskOutcome,
)
from fusioncache.accelerators.precompile.pool import CompilePool
from fusioncache.accelerators.precompile.requests import DAMAGED, CompileTask, read_request, survey
from fusioncache.ir import Declined
from fusioncache.ir.strict_json import decode, encode
from fusioncache.store import Store
from fusioncache.store.entry import is_compiled
from fusioncache.store.files import Refusal, publish, read_private
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
    store: Store | str | Path | None = None, *, jobs: int = 1, progress: Progress | None = None, dry_run: bool = False
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

    Raises:
        TypeError: if ``store`` is none of these.
        ValueError: if ``jobs`` is less than 1.
        FileNotFoundError: if there is no such directory.
    """
    if jobs < 1:
        raise ValueError(f"jobs must be at least 1, got {jobs}")
    start = time.perf_counter()
    opened = _open(store)
    found = survey(opened)
    if progress:
        progress(0, len(found.seconds))
    counts: Counter[str] = Counter()
    refused = Counter(found.refused)
    for done, outcome in enumerate(compile_entries(opened, found.seconds, 1 if dry_run else jobs, dry_run), 1):
        counts[outcome.result] += 1
        if outcome.result == "refused":
            refused[outcome.reason] += 1
            counts["passing"] += outcome.passing
        if progress:
            progress(done, len(found.seconds))
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


def compile_entries(store: Store, seconds: Mapping[str, float], jobs: int, dry_run: bool) -> Iterator[TaskOutcome]:
    """Compiles what entries ask for, in this process or in workers, and yields what became of each.

    Args:
        store: has the entries.
        seconds: that each took to compile, by its id. Those that took longest are compiled first by workers.
        jobs: how many processes compile.
        dry_run: whether to compile nothing.
    """
    tasks: list[CompileTask] = []
    for id_ in sorted(seconds, key=lambda id_: -seconds[id_]):
        try:
            tasks.append(read_request(store, id_))
        except Declined as declined:
            yield TaskOutcome("refused", declined.reason)
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


_FILE = "warmed"
_LARGEST = 1 << 16
_NOISE = re.compile(
    r"_|SHLVL|(OLD)?PWD|TERM.*|COLUMNS|LINES|COLORTERM|LS_COLORS|WINDOWID|DISPLAY|WAYLAND_DISPLAY|STY|TMUX.*|SSH_.*|"
    r"XDG_SESSION_.*|DBUS_.*|VTE_.*|PS\d|PROMPT.*|HIST.*|PYTEST_CURRENT_TEST|FUSIONCACHE_(LOG|EXPLAIN)"
)
"""Variables that say where a terminal is, and what is logged, but nothing of what is compiled."""

_COMPILERS = ("c++", "g++", "gcc", "clang++", "clang", "nvcc", "ptxas")
_PROCESSOR = re.compile(r"(flags|Features|vendor_id|cpu family|model|CPU part)\b")
_DRIVER = Path("/proc/driver/nvidia")


def recall(store: Store) -> Warmed | None:
    """Returns what compiling ahead would come to if it were done again; None if that takes looking. Never raises."""
    if store.directory is None:
        return None
    with suppress(Refusal, OSError, ValueError):
        content = read_private(store.directory / _FILE, _LARGEST)
        if content:
            state, known, ready, refused = decode(content, "readiness").fields("state", "known", "ready", "refused")
            reasons = {
                reason.text(): number.integer() for reason, number in (pair.items(2) for pair in refused.items())
            }
            if state.text() == _digest_state(store):
                return Warmed(known.integer(), ready.integer(), 0, MappingProxyType(reasons), 0, 0.0)
    return None


def remember(store: Store, warmed: Warmed) -> None:
    """Notes what came of compiling ahead, unless the next time may come to something else.

    Never raises: where the note cannot be written, the next one looks again.
    """
    if store.directory is None or warmed.failed or warmed.passing:
        return
    with suppress(OSError):
        ready = warmed.ready + warmed.compiled
        known = sum(is_compiled(entry.backend) for entry in store.entries())
        refused = sorted(warmed.refused.items())
        body = {"state": _digest_state(store), "known": known, "ready": ready, "refused": refused}
        publish(store.directory / _FILE, encode(body))


def _digest_state(store: Store) -> str:
    """Returns the digest of what a store has and what it is used in."""
    if store.disk is None:
        raise ValueError("a store in memory")
    entries = sorted((id_, file.inode, file.size) for id_, file in store.disk.entries.list_files().items())
    text = json.dumps([entries, sorted(store.disk.sizes().items()), digest_surroundings()])
    return hashlib.sha256(text.encode()).hexdigest()


def digest_surroundings() -> str:
    """Returns the digest of installed packages, variables, the processor, the GPUs, their driver and the compilers.

    No compiler is started for it. The digest depends on more than any key does, so that what is not known to matter
    changes it. It must not depend on less: where it is equal, no process is started to ask again.
    """
    return hashlib.sha256("\n".join(_describe_surroundings()).encode(errors="surrogateescape")).hexdigest()


def _describe_surroundings() -> Iterator[str]:
    yield f"python {sys.version} {sys.executable}"
    yield f"platform {platform.uname()} {len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else ''}"
    yield from sorted(f"{name}={value}" for name, value in os.environ.items() if not _NOISE.fullmatch(name))
    for folder in dict.fromkeys(sys.path):  # packages have their version in the name of a folder
        for kind in ("*.dist-info", "*.egg-info", "*.egg-link", "*.pth"):
            yield from (_stamp(path) for path in sorted(Path(folder or ".").glob(kind)))
    yield from (_stamp(path) for path in sorted(Path(__file__).parents[2].rglob("*.py")))
    named = [os.environ.get(name, "").split(" ")[0] for name in ("CC", "CXX")]
    yield from (_stamp(Path(path)) for path in map(shutil.which, filter(None, (*_COMPILERS, *named))) if path)
    yield from sorted({line for line in _read(Path("/proc/cpuinfo")).splitlines() if _PROCESSOR.match(line)})
    yield _read(_DRIVER / "version")
    yield from (_read(path) for path in sorted(_DRIVER.glob("gpus/*/information")))


def _stamp(path: Path) -> str:
    try:
        status = path.stat()
    except OSError:
        return f"{path} gone"
    return f"{path} {status.st_size} {status.st_mtime_ns}"


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
