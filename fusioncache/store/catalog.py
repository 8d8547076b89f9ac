"""What is in a store and what happened to it: what the index says, or else the entries themselves."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

from fusioncache.ir import Key
from fusioncache.store.disk import DiskStore
from fusioncache.store.entry import Entry, Summary, sort_newest_first, summary
from fusioncache.store.errors import Refusal
from fusioncache.store.index import Event, Index, is_in_use
from fusioncache.store.journal import Journal
from fusioncache.store.slots import is_outdated


def list_entries(disk: DiskStore, journal: Journal) -> tuple[Summary, ...]:
    """Returns all entries that can be read, newest first.

    Raises:
        OSError: if the directory cannot be read.
    """
    journal.flush()
    found, look = disk.entries.list_files(), partial(read_entry, disk)
    summaries = _ask(journal, lambda index: index.summaries(found, look))
    if summaries is None:
        summaries = sort_newest_first(map(summary, filter(None, map(look, found))))
    return summaries


def read_entry(disk: DiskStore, id_: str) -> Entry | None:
    """Returns an entry; None if there is none that can be read."""
    with suppress(Refusal, OSError):
        return disk.entries.get(id_)
    return None


def list_events(journal: Journal, limit: int) -> tuple[Event, ...]:
    """Returns the newest events of all processes, newest first, as far as the index has them."""
    journal.flush()
    return _ask(journal, lambda index: index.events(limit)) or ()


def find_nearest(journal: Journal, key: Key, backend: str) -> str:
    """Returns the digest of the nearest key in the store; empty if there is none, or no index to ask."""
    journal.flush()
    return _ask(journal, lambda index: index.nearest(key, backend, time.time())) or ""


def read_texts(disk: DiskStore, journal: Journal) -> Mapping[str, str]:
    """Returns the whole text of each entry's key, by its digest, but for programs of another format.

    Raises:
        OSError: if the directory cannot be read.
    """
    listed = list_entries(disk, journal)
    known = _ask(journal, lambda index: index.texts()) or {}
    ids = {item.digest: f"{item.digest}.{item.backend}" for item in listed}
    missing = filter(None, (read_entry(disk, id_) for digest, id_ in ids.items() if digest not in known))
    texts = {**known, **{entry.digest: entry.text for entry in missing}}
    return {digest: text for digest, text in texts.items() if not is_outdated(text)}


def read_contents(disk: DiskStore, journal: Journal, name: str) -> Mapping[str, bytes]:
    """Returns each entry's artifact with this name, if it has one that is whole, by the entry's id.

    Raises:
        OSError: if the directory cannot be read.
    """
    list_entries(disk, journal)  # brings the index up to what is there
    found = _ask(journal, lambda index: index.artifacts(name))
    if found is None:
        whole = (read_entry(disk, id_) for id_ in disk.entries.list_files())
        found = {entry.id: part for entry in whole if entry for part in entry.artifacts if part.name == name}
    read_ = {}
    for id_, artifact in found.items():
        with suppress(Refusal, OSError):
            read_[id_] = disk.content(artifact)
    return read_


def _ask[T](journal: Journal, question: Callable[[Index], T]) -> T | None:
    """Asks the index; None if it says nothing."""
    index = journal.index
    try:
        return question(index) if index else None
    except Exception as error:  # whatever it is, there is an answer without it
        if not is_in_use(error):
            journal.drop_index(error)
        return None
