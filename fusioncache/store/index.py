"""The index: what is in a store and what happened to it, in sqlite. All but the events can be read off the entries."""

from __future__ import annotations

import json
import os
import sqlite3
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

from fusioncache.ir import Key
from fusioncache.ir.ingredients import graph_digest
from fusioncache.process import sqlite_file
from fusioncache.process.places import free
from fusioncache.store.directory import INDEX
from fusioncache.store.entry import DIGEST, Artifact, Entry, Summary, sort_newest_first
from fusioncache.store.errors import Refusal
from fusioncache.store.folders import EntryFile
from fusioncache.store.locks import FileLock

SCHEMA_VERSION = 3
LOCK_SECONDS = 5.0
EVENTS_KEPT = 100_000

TABLES = (
    """CREATE TABLE templates (
    digest TEXT PRIMARY KEY, graph TEXT NOT NULL, text TEXT NOT NULL, ingredients TEXT NOT NULL)""",
    "CREATE INDEX graphs ON templates (graph)",
    """CREATE TABLE entries (
    id TEXT PRIMARY KEY, digest TEXT NOT NULL, backend TEXT NOT NULL, name TEXT NOT NULL, created REAL NOT NULL,
    seconds REAL NOT NULL, pid INTEGER NOT NULL, host TEXT NOT NULL, inode INTEGER NOT NULL,
    bytes INTEGER NOT NULL)""",
    """CREATE TABLE artifacts (
    id TEXT NOT NULL, name TEXT NOT NULL, object TEXT NOT NULL, size INTEGER NOT NULL, PRIMARY KEY (id, name))""",
    """CREATE TABLE events (
    time REAL NOT NULL, pid INTEGER NOT NULL, host TEXT NOT NULL, what TEXT NOT NULL, id TEXT NOT NULL,
    reason TEXT NOT NULL, seconds REAL NOT NULL, nearest TEXT NOT NULL DEFAULT '')""",
)
"""One row for each key, each entry with its file's inode and size, each artifact of an entry, each event.

``graph`` is the digest of what a key computes, whatever its environment; ``nearest`` is the digest of the key that was
nearest to a missed one. A miss of before version 3 has a sentence as its reason instead.
"""

_READ_OFF_THE_ENTRIES = ("templates", "entries", "artifacts")

_MOST_COMPARED = 16

_SAME_GRAPH = """
SELECT templates.digest, templates.ingredients FROM templates JOIN entries ON entries.digest = templates.digest
WHERE templates.graph = ? AND templates.digest != ? AND entries.backend = ? AND entries.created <= ?
ORDER BY entries.created DESC, templates.digest LIMIT ?
"""

_SUMMARIES = """
SELECT entries.digest, entries.backend, entries.name, entries.created, entries.seconds, entries.pid, entries.host,
    count(artifacts.name), coalesce(sum(artifacts.size), 0)
FROM entries LEFT JOIN artifacts ON artifacts.id = entries.id GROUP BY entries.id
"""


Parts = tuple[tuple[str, str], ...]
"""What keys are compared by: the name and the digest of each ingredient. Its text may have 100,000 characters."""


def list_parts(key: Key) -> Parts:
    """Returns the parts of a key."""
    return tuple((part.name, part.digest) for part in key.ingredients)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a store.

    Attributes:
        time: seconds since the epoch.
        pid: the process that it happened in.
        host: the machine that it ran on.
        what: ``hit``, ``miss``, ``save``, ``pull`` or ``bypass``.
        id: key's digest and backend; empty if it was about no entry.
        reason: of a bypass.
        seconds: that it took.
        nearest: of a miss, the digest of the nearest key that was stored for the same graph; empty if there was none.
    """

    time: float
    pid: int
    host: str
    what: str
    id: str
    reason: str
    seconds: float
    nearest: str = ""


_IN_USE = "the index is in use"


class Index:
    """The file ``index.sqlite`` of a store. Nothing that is in the store gets lost with it.

    One process at a time has it open, by a lock of our own: it may then be set aside when it is damaged, which sqlite
    does not survive while another process writes it, and locks in sqlite's files need not work on network file systems.
    """

    def __init__(self, root: Path):
        self._path = root / INDEX
        self._lock_path = root / "locks" / "index"

    def write(
        self,
        events: Sequence[tuple[Event, Parts | None]],
        entries: Iterable[tuple[Entry, EntryFile]],
        timeout: float | None = None,
    ) -> None:
        """Adds events, and entries that were just published.

        Args:
            events: what happened, each miss with the parts of the key that was missed: the nearest key is found here.
            entries: with their files.
            timeout: how many seconds to wait for others; by default ``LOCK_SECONDS``.

        Raises:
            Refusal: if others have the index open all the time, see ``is_in_use``, or if it is another version's.
            OSError, sqlite3.Error: if it cannot be written.
        """

        def add(database: sqlite3.Connection) -> None:
            for entry, found in entries:
                _put(database, entry, found)
            rows = [astuple(_complete(database, event, parts)) for event, parts in events]
            database.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
            database.execute("DELETE FROM events WHERE rowid <= (SELECT max(rowid) FROM events) - ?", (EVENTS_KEPT,))

        self._run(add, timeout)

    def summaries(self, found: Mapping[str, EntryFile], read: Callable[[str], Entry | None]) -> tuple[Summary, ...]:
        """Returns all entries, newest first, after the index was brought up to what is there.

        Args:
            found: the files of all entries.
            read: reads one of them; None if it cannot be read.

        Raises:
            What ``write`` raises.
        """

        def list_rows(database: sqlite3.Connection) -> list[tuple[Any, ...]]:
            _synchronize(database, found, read)
            return database.execute(_SUMMARIES).fetchall()

        return sort_newest_first(Summary(*row) for row in self._run(list_rows))

    def events(self, limit: int) -> tuple[Event, ...]:
        """Returns the newest events, newest first.

        Raises:
            What ``write`` raises.
        """
        query = "SELECT * FROM events ORDER BY rowid DESC LIMIT ?"
        return tuple(Event(*row) for row in self._run(lambda database: database.execute(query, (limit,)).fetchall()))

    def nearest(self, key: Key, backend: str, time: float) -> str:
        """Returns the digest of the nearest key that was stored by this time. See ``Store.nearest``.

        Raises:
            What ``write`` raises.
        """
        return self._run(lambda database: _find_nearest(database, key.digest, list_parts(key), backend, time))

    def texts(self) -> dict[str, str]:
        """Returns the whole text of each key, by its digest.

        Raises:
            What ``write`` raises.
        """
        return dict(self._run(lambda database: database.execute("SELECT digest, text FROM templates").fetchall()))

    def artifacts(self, name: str) -> dict[str, Artifact]:
        """Returns each entry's artifact with this name, if it has one, by the entry's id. Ask for ``summaries`` first.

        Raises:
            What ``write`` raises.
        """
        query = "SELECT id, name, object, size FROM artifacts WHERE name = ?"
        rows = self._run(lambda database: database.execute(query, (name,)).fetchall())
        return {id_: Artifact(*artifact) for id_, *artifact in rows}

    def _run[T](self, work: Callable[[sqlite3.Connection], T], timeout: float | None = None) -> T:
        """Runs one transaction; a second one, in a new index, if the first finds that this one is damaged."""
        lock = FileLock(self._lock_path)
        if not lock.acquire(LOCK_SECONDS if timeout is None else timeout):
            raise Refusal(_IN_USE)
        try:
            free(self._path)
            try:
                return _transact(self._path, work)
            except sqlite3.DatabaseError as error:
                if not _is_damage(error):
                    raise
                self._set_aside()
                return _transact(self._path, work)
        finally:
            lock.release()

    def _set_aside(self) -> None:
        # A journal that stays behind does no harm: sqlite deletes one that it finds beside an empty file.
        os.replace(self._path, self._path.with_name(f"{INDEX}.damaged-{uuid.uuid4().hex[:8]}"))


def is_in_use(error: Exception) -> bool:
    """True if an exception says that other processes keep the index open."""
    return isinstance(error, Refusal) and error.reason == _IN_USE


def _transact[T](path: Path, work: Callable[[sqlite3.Connection], T]) -> T:
    with _SCHEMA.write(path, LOCK_SECONDS) as database:
        return work(database)


def _make_error(path: Path, version: int) -> Exception:
    """Returns what is raised for an index of another version: a later one stays, and any other is damaged."""
    if version > SCHEMA_VERSION:
        return Refusal("the index is of a later version of fusioncache")
    error = sqlite3.DatabaseError(f"a schema of version {version}")
    error.sqlite_errorcode = sqlite3.SQLITE_NOTADB
    return error


def _read_entries_anew(database: sqlite3.Connection) -> None:
    """Upgrades version 1, whose templates had no graph: events stay, and all else is read off the entries again."""
    for table in _READ_OFF_THE_ENTRIES:
        database.execute(f"DROP TABLE {table}")
    database.execute("SELECT 1 FROM events")
    for table in TABLES:
        if "TABLE events" not in table:
            database.execute(table)
    _add_nearest(database)


def _add_nearest(database: sqlite3.Connection) -> None:
    """Upgrades version 2, whose misses had sentences as their reasons: these stay."""
    database.execute("ALTER TABLE events ADD COLUMN nearest TEXT NOT NULL DEFAULT ''")


# No WAL: its shared memory does not work on network file systems.
_SCHEMA = sqlite_file.Schema(
    SCHEMA_VERSION, TABLES, "PRAGMA journal_mode = DELETE", _make_error, {1: _read_entries_anew, 2: _add_nearest}
)


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    code = getattr(error, "sqlite_errorcode", None)
    missing = isinstance(error, sqlite3.OperationalError) and "no such" in str(error)
    return missing or code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _complete(database: sqlite3.Connection, event: Event, parts: Parts | None) -> Event:
    """Returns a miss with its nearest key; any other event as it is."""
    if parts is None:
        return event
    digest, _, backend = event.id.rpartition(".")
    return replace(event, nearest=_find_nearest(database, digest, parts, backend, event.time))


def _find_nearest(database: sqlite3.Connection, digest: str, parts: Parts, backend: str, time: float) -> str:
    """Returns a digest, or an empty text. Digests are compared, and no text is read: others wait for the index."""
    own, graph = set(parts), graph_digest(parts)
    if not (graph and DIGEST.fullmatch(digest)):
        return ""
    found = database.execute(_SAME_GRAPH, (graph, digest, backend, time, _MOST_COMPARED)).fetchall()
    differing = {digest: len(own ^ set(map(tuple, json.loads(ingredients)))) for digest, ingredients in found}
    return min(differing, key=lambda digest: differing[digest], default="")


def _synchronize(
    database: sqlite3.Connection, found: Mapping[str, EntryFile], read: Callable[[str], Entry | None]
) -> None:
    known = {id_: file for id_, *file in database.execute("SELECT id, inode, bytes FROM entries")}
    for id_ in known.keys() - found.keys():
        _forget(database, id_)
    for id_, file in found.items():
        if known.get(id_) != [file.inode, file.size]:
            entry = read(id_)
            if entry:
                _put(database, entry, file)
            else:
                _forget(database, id_)
    database.execute("DELETE FROM templates WHERE digest NOT IN (SELECT digest FROM entries)")


def _put(database: sqlite3.Connection, entry: Entry, found: EntryFile) -> None:
    _forget(database, entry.id)
    row = (entry.id, entry.digest, entry.backend, entry.name, entry.created, entry.seconds, entry.pid, entry.host)
    database.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", (*row, found.inode, found.size))
    artifacts = [(entry.id, artifact.name, artifact.object, artifact.size) for artifact in entry.artifacts]
    database.executemany("INSERT INTO artifacts VALUES (?, ?, ?, ?)", artifacts)
    ingredients = json.dumps(entry.ingredients)
    template = (entry.digest, graph_digest(entry.ingredients), entry.text, ingredients)
    database.execute("INSERT OR REPLACE INTO templates VALUES (?, ?, ?, ?)", template)


def _forget(database: sqlite3.Connection, id_: str) -> None:
    database.execute("DELETE FROM entries WHERE id = ?", (id_,))
    database.execute("DELETE FROM artifacts WHERE id = ?", (id_,))
