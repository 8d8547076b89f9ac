"""What a process counts and tells about its use of a store."""

from __future__ import annotations

import os
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType

from fusioncache.ir import Key
from fusioncache.process import forks
from fusioncache.process.warning import warn
from fusioncache.store.entry import Entry
from fusioncache.store.errors import name_cause
from fusioncache.store.folders import EntryFolder
from fusioncache.store.index import Event, Index, Parts, is_in_use, list_parts

_MOST_WAITING = 256
"""Events that are kept back before they are written: the index is no part of any load or save."""

_MOST_KEPT = 4096


@dataclass(frozen=True, slots=True)
class StoreStats:
    """What this process did with a store.

    Attributes:
        hits: loads that found what they wanted.
        misses: loads that did not.
        saves: entries that were published.
        pulls: entries that came from the remote; loads that brought them are hits.
        bypasses: how often the store was not used as it should have been, by reason.
    """

    hits: int
    misses: int
    saves: int
    pulls: int
    bypasses: MappingProxyType[str, int]


class Journal:
    """Counts events on any thread, warns of each sort of failure once, and writes events into the index.

    Args:
        index: to write into, if there is one.
        entries: those of the same store.
    """

    def __init__(self, index: Index | None, entries: EntryFolder | None):
        self._counts: Counter[str] = Counter()
        self._bypasses: Counter[str] = Counter()
        self._events: list[tuple[Event, Parts | None]] = []
        self._entries: list[Entry] = []
        self._disk = (index, entries) if index and entries else None
        self._lock = forks.lock()
        self.pid = os.getpid()
        forks.register(self)

    @property
    def index(self) -> Index | None:
        """Where events are written; None if nowhere."""
        disk = self._disk
        return disk[0] if disk else None

    def end(self) -> None:
        """Has events only counted from now on."""
        with self._lock:
            self._disk = None

    def count_event(
        self, what: str, id_: str, seconds: float, *, entry: Entry | None = None, key: Key | None = None
    ) -> None:
        """Counts a ``hit``, a ``miss``, which comes with its key, or a ``save`` or ``pull``, with their entry."""
        with self._lock:
            self._counts[what] += 1
            if entry:
                self._entries.append(entry)
        self._note(what, id_, "", seconds, key)

    def count_bypass(self, reason: str, message: str, id_: str = "") -> None:
        """Counts something that did not go as it should, and warns if this is the first time for this reason."""
        with self._lock:
            self._bypasses[reason] += 1
            first = self._bypasses[reason] == 1
        self._note("bypass", id_, reason, 0.0)
        if first:
            warn(message)

    def stats(self) -> StoreStats:
        """Returns the counts now."""
        with self._lock:
            counts, bypasses = self._counts, MappingProxyType(dict(self._bypasses))
            return StoreStats(counts["hit"], counts["miss"], counts["save"], counts["pull"], bypasses)

    def flush(self, timeout: float | None = None) -> None:
        """Writes what waits, unless others have the index open for longer than ``timeout``. Never raises."""
        with self._lock:
            disk, events, entries = self._disk, self._events, self._entries
            self._events, self._entries = [], []
        if disk is None or not (events or entries):
            return
        index, files = disk
        try:
            found = ((entry, files.find(entry.id)) for entry in entries)
            index.write(events, [(entry, file) for entry, file in found if file], timeout)
        except Exception as error:  # whatever it is, an index is not worth a model
            if not is_in_use(error):
                self.drop_index(error)
                return
            with self._lock:
                # Entries need not be kept: a list of what is there finds them.
                self._events = [*events, *self._events][-_MOST_KEPT:]

    def drop_index(self, error: Exception) -> None:
        """Stops using the index in this process. Nothing else depends on it."""
        self.end()
        message = f"what happens to the store is not recorded any more ({error})"
        self.count_bypass(f"no index: {name_cause(error)}", message)

    def after_fork(self) -> None:
        """Forgets, in a forked child, what the parent counted."""
        self.pid = os.getpid()
        self._counts.clear()
        self._bypasses.clear()
        self._events, self._entries = [], []

    def _note(self, what: str, id_: str, reason: str, seconds: float, key: Key | None = None) -> None:
        with self._lock:
            if self._disk is None:
                return
            event = Event(
                time.time(), self.pid, get_host(), what, escape_surrogates(id_), escape_surrogates(reason), seconds
            )
            self._events.append((event, None if key is None else list_parts(key)))
            full = len(self._events) % _MOST_WAITING == 0
        if full:
            self.flush(0.0)  # or a load would wait here


def get_host() -> str:
    """Returns the name of this machine, as far as it has one."""
    with suppress(AttributeError, OSError):
        return escape_surrogates(os.uname().nodename)
    return ""


def escape_surrogates(text: str) -> str:
    """Writes out what is no valid Unicode in a text: neither sqlite nor a file takes it."""
    return text.encode(errors="backslashreplace").decode()
