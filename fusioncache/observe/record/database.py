"""The record of runs, a SQLite file: its tables, its writer and reader, and its limits of size and age."""

from __future__ import annotations

import atexit
import json
import os
import shlex
import sqlite3
import sys
import threading
import time
import uuid
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from fusioncache.ir import codec
from fusioncache.observe.record.ledger import Ledger
from fusioncache.observe.record.observations import (
    ChoiceRecord,
    Lifetime,
    PlacementRecord,
    Record,
    RegionRecord,
    Run,
)
from fusioncache.observe.record.region_codec import encode_record, pack_trace, unpack, unpack_trace
from fusioncache.observe.record.stats import Stats, TemplateStats
from fusioncache.process import forks
from fusioncache.process.files import free, make_folders, protect
from fusioncache.process.secrets import list_options
from fusioncache.process.settings import DIRECTORY, find_directory
from fusioncache.process.warning import warn

MAX_BYTES = 64 << 20
"""The largest size of the file. The newest run stays; details for which there is no room are left out of it."""
MAX_AGE = 90 * 86400.0
"""Seconds without a save after which a run is removed."""
FILL = 0.8
"""The fraction of the largest size down to which runs are removed, so that not every save has to remove some."""
MOST_RUNS = 100
MOST_PAST_RUNS = 10_000
"""How many removed runs are still counted."""
LOCK_SECONDS = 10.0
"""How long a process waits for another process's write."""

TOTALS = tuple(each.name for each in fields(Lifetime) if each.name not in ("since", "runs"))
"""The fields of ``Stats`` that are summed over all runs, including removed ones."""
USES, TRACES = "uses", "traces"
"""The record kinds for a run's templates and traces. Other kinds are named after their classes."""

_TABLES = (
    f"""CREATE TABLE runs (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, started REAL NOT NULL, updated REAL NOT NULL,
    {", ".join(f"{name} NOT NULL" for name in TOTALS)}, content BLOB)""",
    """CREATE TABLE templates (
    id INTEGER PRIMARY KEY, digest TEXT NOT NULL UNIQUE, name TEXT NOT NULL, ops INTEGER NOT NULL,
    content BLOB NOT NULL)""",
    """CREATE TABLE records (
    run INTEGER NOT NULL, kind TEXT NOT NULL, number INTEGER NOT NULL, content BLOB NOT NULL,
    PRIMARY KEY (run, kind, number)) WITHOUT ROWID""",
)
"""A removed run has no content and no records. Columns without a type preserve integers and floats. The number of a
template's record is the template's id.
"""


class RecordError(Exception):
    """The record cannot be read or written; the message says what is wrong and what to do."""


FORMAT = 18
"""Format of the record. It is part of the file name: each format has its own file, and other formats' files stay.

Formats before 13 contain the values of command lines.
"""


def record_path() -> Path:
    """Returns the path of the record: in ``FUSIONCACHE_DIR`` if that is set, else in the platform's cache directory."""
    return find_directory() / f"record-{FORMAT}.sqlite"


def _find_journal(path: Path) -> Path:
    return path.with_name(f"{path.name}-journal")


def _free(path: Path) -> bool:
    """Removes obstacles at the paths of a record and its journal. Returns whether one was in place of the record."""
    free(_find_journal(path))
    return free(path, follows=True)


@contextmanager
def open_for_writing(path: Path) -> Iterator[sqlite3.Connection]:
    """Opens the record for one transaction, which is rolled back on any error. Adds the tables to a new file.

    Raises:
        sqlite3.Error: if the file cannot be written.
        RecordError: if it is not a record of this format.
    """
    make_folders(path.parent)
    for other in [] if path.exists() else path.parent.glob("record-*.sqlite"):
        protect(other)  # of another format
    _free(path)
    with closing(sqlite3.connect(path, timeout=LOCK_SECONDS, isolation_level=None)) as database, database:
        database.execute("PRAGMA secure_delete = ON")
        # Data that was written survives the process being killed. To survive a power failure as well, each write would
        # have to wait for the disk: fifty times as long, in the middle of a step.
        database.execute("PRAGMA synchronous = OFF")
        _fetch(database, "PRAGMA user_version")
        protect(path)  # while a new one is empty; sqlite's files beside it get its permissions
        # On a file with pages, even a foreign one, this pragma only writes to it.
        if _fetch(database, "PRAGMA page_count") == 0:
            database.execute("PRAGMA auto_vacuum = FULL")
        # A transaction that begins with a read fails at once if another process writes; this one waits for its turn.
        database.execute("BEGIN IMMEDIATE")
        # Any other program's sqlite file may have version 0, but only a new file has no tables.
        is_new = _fetch(database, "SELECT 1 FROM sqlite_master") is None
        if not is_new or _fetch(database, "PRAGMA user_version"):
            _check_format(path, database)
        else:
            for table in _TABLES:
                database.execute(table)
            database.execute(f"PRAGMA user_version = {FORMAT}")
        yield database


@contextmanager
def open_for_reading(path: Path) -> Iterator[sqlite3.Connection]:
    """Opens the record for reading, with rows indexed by column name.

    Raises:
        sqlite3.Error: if the file cannot be read.
        RecordError: if it is not a record of this format, or its journal is no file, for which sqlite might wait.
    """
    journal = _find_journal(path)
    if journal.is_symlink() or (journal.exists() and not journal.is_file()):
        raise RecordError(f"{journal} is no file: the next run or 'fusioncache prune' removes it")
    # Not mode=ro: a process that died during a write leaves a journal. The next one to open the file rolls it back,
    # which takes a writable connection. sqlite falls back to reading if the file is protected.
    protect(path)
    address = f"{path.absolute().as_uri()}?mode=rw"
    with closing(sqlite3.connect(address, uri=True, timeout=LOCK_SECONDS)) as database:
        database.row_factory = sqlite3.Row
        _check_format(path, database)
        yield database


def _check_format(path: Path, database: sqlite3.Connection) -> None:
    version = _fetch(database, "PRAGMA user_version")
    if version != FORMAT:
        raise RecordError(
            f"{path} has format {version} and this fusioncache reads format {FORMAT}: move it away, or set "
            f"{DIRECTORY.name} to another directory"
        )


def find_run(database: sqlite3.Connection, run: str) -> int | None:
    """Returns the number of a run by its id; None if it is missing or removed."""
    return _fetch(database, "SELECT number FROM runs WHERE id = ? AND content IS NOT NULL", run)


def put_run(database: sqlite3.Connection, run: Run) -> int:
    """Writes a run. Returns its number."""
    totals = {name: getattr(run.stats, name) for name in TOTALS}
    row = {"id": run.id, "started": run.started, "updated": run.updated, **totals, "content": encode_record(run)}
    names, marks, new = (", ".join(each.format(name) for name in row) for each in ("{0}", ":{0}", "{0} = excluded.{0}"))
    database.execute(f"INSERT INTO runs ({names}) VALUES ({marks}) ON CONFLICT DO UPDATE SET {new}", row)
    return _fetch(database, "SELECT number FROM runs WHERE id = ?", run.id)


def put_template(database: sqlite3.Connection, run: int, template: TemplateStats) -> None:
    """Writes a template's share in a run, given by number, and the template if it is new."""
    content = zlib.compress(json.dumps(template.ingredients).encode())
    values = (template.digest, template.name, template.ops, content)
    database.execute("INSERT OR IGNORE INTO templates (digest, name, ops, content) VALUES (?, ?, ?, ?)", values)
    number = _fetch(database, "SELECT id FROM templates WHERE digest = ?", template.digest)
    share = replace(template, name="", digest="", ops=0, ingredients=())
    put_record(database, run, USES, number, encode_record(share))


def put_record(database: sqlite3.Connection, run: int, kind: str, number: int, content: bytes) -> None:
    """Writes an observation of a run, or replaces the one with this number."""
    database.execute("INSERT OR REPLACE INTO records VALUES (?, ?, ?, ?)", (run, kind, number, content))


def make_room(
    database: sqlite3.Connection, run: int | None = None, *, max_bytes: int | None = None, max_age: float | None = None
) -> int:
    """Removes old runs, and templates that only they used, if the file is too large or runs are too many or too old.

    Age counts from the last save rather than the start, so that a run in progress is not old. The newest run stays.

    Args:
        database: in a transaction.
        run: the number of the newest run, if known, because clocks may have been set back.
        max_bytes: the largest size of the file; by default ``MAX_BYTES``.
        max_age: in seconds; by default ``MAX_AGE``.

    Returns:
        How many runs were deleted.
    """
    limit = MAX_BYTES if max_bytes is None else max_bytes
    oldest = time.time() - (MAX_AGE if max_age is None else max_age)
    order = "number IS ? DESC, updated DESC, number DESC"
    newest_first = f"SELECT number, updated FROM runs WHERE content IS NOT NULL ORDER BY {order}"
    runs = database.execute(newest_first, (run,)).fetchall()
    old = [number for place, (number, updated) in enumerate(runs) if place and (place >= MOST_RUNS or updated < oldest)]
    _forget(database, old)
    left = [number for number, _ in runs[1:] if number not in set(old)]
    if measure(database) > limit:
        while left and measure(database) > limit * FILL:
            old.append(left.pop())
            _forget(database, old[-1:])
    return len(old)


def measure(database: sqlite3.Connection) -> int:
    """Returns the size of the file in bytes after the transaction."""
    pages, unused, size = (_fetch(database, f"PRAGMA {name}") for name in ("page_count", "freelist_count", "page_size"))
    return int((pages - unused) * size)


def _forget(database: sqlite3.Connection, runs: Sequence[int]) -> None:
    if not runs:
        return
    for number in runs:
        database.execute("DELETE FROM records WHERE run = ?", (number,))
        database.execute("UPDATE runs SET content = NULL WHERE number = ?", (number,))
    newest = "SELECT number FROM runs WHERE content IS NULL ORDER BY started DESC LIMIT ?"
    database.execute(f"DELETE FROM runs WHERE content IS NULL AND number NOT IN ({newest})", (MOST_PAST_RUNS,))
    database.execute(f"DELETE FROM templates WHERE id NOT IN (SELECT number FROM records WHERE kind = '{USES}')")


def _fetch(database: sqlite3.Connection, query: str, *parameters: Any) -> Any:
    """Returns the first value of the first row; None if there is no row."""
    row = database.execute(query, parameters).fetchone()
    return None if row is None else row[0]


_OF_RUN = "run = (SELECT number FROM runs WHERE id = :run)"
_USES = f"""SELECT digest, name, ops, templates.content AS text, records.content
    FROM records JOIN templates ON templates.id = records.number
    JOIN runs ON runs.number = records.run WHERE kind = '{USES}'"""


class RecordReader:
    """Reads the record of runs.

    Attributes:
        path: the file.

    Raises:
        RecordError: if there is no record, or it cannot be read. All methods raise it, too.
    """

    def __init__(self) -> None:
        self.path = record_path()
        if not has_record():
            raise RecordError(_no_record(self.path))
        self._rows("SELECT 1")

    def runs(self) -> tuple[Run, ...]:
        """Returns all runs, newest first."""
        rows = self._rows("SELECT content FROM runs WHERE content IS NOT NULL ORDER BY started DESC, id")
        return self._decode(lambda row: codec.decode(Run, row["content"], "run"), rows)

    def templates(self, run: str, *, texts: bool = True) -> tuple[TemplateStats, ...]:
        """Returns a run's templates, the most expensive first, with the texts of their keys if ``texts`` is true."""
        return self._read_templates(self._rows(f"{_USES} AND runs.id = :run", run=run), texts=texts)

    def regions(self, run: str, template: str | None = None) -> tuple[RegionRecord, ...]:
        """Returns a run's regions, in the order of its traces and of positions in these.

        Args:
            run: its id.
            template: the digest of a template, to return only its regions.
        """
        has_template = f"""SELECT records.run FROM records JOIN templates ON id = number
            WHERE kind = '{USES}' AND digest = :template"""
        wanted = f"{_OF_RUN} AND kind = '{TRACES}' AND (:template IS NULL OR run IN ({has_template}))"
        query = f"SELECT content FROM records WHERE {wanted} ORDER BY number"
        traces = self._decode(lambda row: unpack_trace(row["content"]), self._rows(query, run=run, template=template))
        return tuple(region for trace in traces for region in trace if template in (None, region.digest))

    def records[T: Record](self, run: str, kind: type[T]) -> tuple[T, ...]:
        """Returns a run's observations of one kind, in the order they were made. Regions are in ``regions``."""
        name = kind.__name__
        rows = self._rows(f"SELECT content FROM records WHERE {_OF_RUN} AND kind = :kind", run=run, kind=name)
        return self._decode(lambda row: codec.decode(kind, row["content"], name), rows)

    def lifetime(self) -> Lifetime:
        """Returns the totals of all runs, since the first of them."""
        sums = ", ".join(f"sum({name})" for name in TOTALS)
        ((since, runs, *totals),) = self._rows(f"SELECT min(started), count(*), {sums} FROM runs")
        return Lifetime(since or 0.0, runs, *(total or 0 for total in totals))

    def find_templates(self, prefix: str) -> tuple[TemplateStats, ...]:
        """Returns the templates whose digest or name starts with ``prefix``, each with the counts of its newest run.

        If some digests or names equal ``prefix``, returns only these. The most expensive come first.
        """
        newest = self._newest("(instr(digest, :prefix) = 1 OR instr(name, :prefix) = 1)", prefix=prefix)
        return tuple(each for each in newest if prefix in (each.digest, each.name)) or newest

    def before(self, run: str) -> tuple[TemplateStats, ...]:
        """Returns the templates of runs before this one, each with the counts of its newest such run."""
        return self._newest("runs.started < (SELECT started FROM runs WHERE id = :run)", run=run)

    def _newest(self, wanted: str, **parameters: str) -> tuple[TemplateStats, ...]:
        """Returns the templates that match a condition, each with its newest run, the most expensive first."""
        rows = self._rows(f"{_USES} AND {wanted} ORDER BY runs.started, runs.id DESC", **parameters)
        return self._read_templates({row["digest"]: row for row in rows}.values())

    def _read_templates(self, rows: Iterable[sqlite3.Row], *, texts: bool = True) -> tuple[TemplateStats, ...]:
        found = self._decode(lambda row: _decode_template(row, row["text"] if texts else None), rows)
        return tuple(sorted(found, key=lambda each: (-each.compile_seconds, -each.regions, each.name, each.digest)))

    def _rows(self, query: str, **parameters: str | int | None) -> list[sqlite3.Row]:
        try:
            with open_for_reading(self.path) as database:
                return database.execute(query, parameters).fetchall()
        except sqlite3.Error as error:
            if "locked" in str(error):
                raise RecordError(f"{self.path} is being written by another process: try again") from error
            raise self._unreadable(error) from error
        except UnicodeEncodeError:
            return []  # the argument is not valid text, so nothing in the record matches

    def _decode[T](self, decode: Callable[[sqlite3.Row], T], rows: Iterable[sqlite3.Row]) -> tuple[T, ...]:
        try:
            return tuple([decode(row) for row in rows])
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> RecordError:
        return RecordError(
            f"{self.path} cannot be read ({error}): check that it may be read; if it is damaged, move it away and the "
            "next run starts a new one"
        )


def _no_record(path: Path) -> str:
    if path.parent.exists() and not path.parent.is_dir():
        return f"{path.parent} is no directory, so nothing is recorded: set {DIRECTORY.name} to one that can be written"
    advice = f"run a model with fusioncache first, or set {DIRECTORY.name} to the directory of an earlier run"
    others = sorted(other.name for other in path.parent.glob("record-*.sqlite") if other != path)
    found = f" ({', '.join(others)} is there, of another version of fusioncache)" if others else ""
    return f"there is no record at {path}{found}: {advice}"


def has_record() -> bool:
    """True if there is a record at the usual path, readable or not.

    Raises:
        RecordError: if its folder cannot be read.
    """
    path = record_path()
    # The file is empty from when the first run opens it until it commits.
    try:
        return path.stat().st_size > 0
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise RecordError(f"{path} cannot be read ({error.strerror}): check its permissions") from error


def _decode_template(row: sqlite3.Row, content: bytes | None) -> TemplateStats:
    counts = codec.decode(TemplateStats, row["content"], "template")
    ingredients = () if content is None else tuple((name, text) for name, text in json.loads(unpack(content)))
    return replace(counts, name=row["name"], digest=row["digest"], ops=row["ops"], ingredients=ingredients)


def forget(path: Path) -> bool:
    """Removes a record while no process writes it. A process that continues writes its own run again.

    Returns:
        True if there was one.

    Raises:
        RecordError: if other processes write it all the time, or it cannot be removed.
    """
    if not os.path.lexists(path):
        return False
    try:
        if not _free(path):
            _remove_unused(path)
    except (sqlite3.Error, OSError) as error:
        raise RecordError(f"{path} cannot be removed ({error}): try again, or remove it yourself") from error
    return True


def _remove_unused(path: Path) -> None:
    with closing(sqlite3.connect(path, timeout=LOCK_SECONDS, isolation_level=None)) as database:
        try:
            database.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError:
            pass  # not a database, so no process writes it
        path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Pruned:
    """Counts what was removed from a record.

    Attributes:
        runs: number of runs removed.
        bytes_left: size of the file afterwards.
    """

    runs: int
    bytes_left: int


def prune(path: Path, max_bytes: int, max_age: float, *, dry_run: bool) -> Pruned:
    """Removes old runs, as each process does that writes a run. The newest stays.

    Args:
        path: of an existing record.
        max_bytes: the largest size of the file.
        max_age: seconds without a save after which a run is removed.
        dry_run: whether to change nothing.

    Raises:
        RecordError: if other processes write it all the time, or it is not a record of this format.
    """
    try:
        with open_for_writing(path) as database:
            runs = make_room(database, max_bytes=max_bytes, max_age=max_age)
            pruned = Pruned(runs, measure(database))
            if dry_run:
                database.rollback()
            return pruned
    except sqlite3.Error as error:
        raise RecordError(f"{path} cannot be written ({error}): try again") from error


APPEND_SECONDS = 0.5
"""How many seconds counts are collected before they are written."""


_Records = dict[tuple[str, int | str], Any]
"""A run's counts and observations, by kind and number: shares of templates by digest, regions by trace."""


class RecordWriter:
    """Saves a ledger's counts as one run, also when the process exits. After its first failure it warns once and stops.

    A forked child saves nothing, because its ledger's counts are its parent's.
    """

    def __init__(self, ledger: Ledger):
        self._ledger = ledger
        self._run = uuid.uuid4().hex
        self._started = time.time()
        self._pid = os.getpid()
        self._lock = forks.lock()
        self._saved: tuple[Stats, tuple[str, ...]] | None = None
        self._left_out: _Records = {}
        self._written: _Records = {}
        self._broken, self._path = False, Path()
        try:
            self._path = record_path()
        except OSError as error:
            self._stop(RecordError(str(error)))
        self._waiting: threading.Timer | None = None
        # Also keeps the ledger alive until exit, because it may have counts that were not saved yet.
        atexit.register(self.end)

    def save(self) -> None:
        """Writes the counts since the last save. Never raises."""
        if self._broken or os.getpid() != self._pid:
            return
        with self._lock:
            try:
                self._save()
            except Exception as error:  # any: a failed record must not stop a model
                self._stop(error)

    def _stop(self, error: Exception) -> None:
        self._broken = True
        _warn(self._path, error)

    def append(self) -> None:
        """Saves soon in a background thread, because a program may call a hundred templates. Never waits or raises."""
        if self._waiting is None:
            self._waiting = threading.Timer(APPEND_SECONDS, self._save_gathered)
            self._waiting.daemon = True
            try:
                self._waiting.start()
            except RuntimeError:  # no thread can be started, as at interpreter shutdown: ``end`` saves then
                self._waiting = None

    def _save_gathered(self) -> None:
        self._waiting = None  # before the save: later counts need the next one
        self.save()

    def end(self) -> None:
        """Saves the run and marks it as ended. Called when the process exits."""
        self.save()
        if self._saved is not None and not self._broken and os.getpid() == self._pid:
            with self._lock, suppress(Exception):  # all counts are already saved
                self._mark_as_ended()

    def _mark_as_ended(self) -> None:
        if self._path.exists():
            with open_for_writing(self._path) as database:
                if find_run(database, self._run) is not None:
                    self._put_run(database, self._left_out, ended=True)

    def _save(self) -> None:
        start = time.perf_counter()
        history = self._ledger.history
        # A change of these counts is a reason to save; a change of the phases' seconds is not.
        now, records = (self._ledger.stats(), history.models), self._list_records()
        # A run must have traced something, even if there was nothing to fuse.
        if (now[0] == Stats() and not history.traces) or (now == self._saved and records == self._written):
            return
        with open_for_writing(self._path) as database:
            # Other processes may have removed this run in the meantime.
            is_new = find_run(database, self._run) is None
            written = {} if is_new else self._written
            left_out = {key: record for key, record in records.items() if record != written.get(key)}
            number = self._put_run(database, {})
            if is_new or left_out:
                make_room(database, number)
                if measure(database) <= MAX_BYTES:
                    _put_records(database, number, left_out)
                    written, left_out = records, {}
                else:
                    self._put_run(database, left_out)
        self._saved, self._written, self._left_out = now, written, left_out
        history.add_seconds("recording", time.perf_counter() - start)

    def _list_records(self) -> _Records:
        """Returns all counts and observations of the run. An unchanged one stays the same object."""
        history, traces = self._ledger.history, defaultdict[int, list[RegionRecord]](list)
        for region in history.records(RegionRecord):
            traces[region.trace_number].append(region)
        found: _Records = {(USES, each.digest): each for each in self._ledger.templates()}
        found |= {(TRACES, number): tuple(regions) for number, regions in traces.items()}
        for kind in (ChoiceRecord, PlacementRecord):
            found |= {(kind.__name__, number): each for number, each in enumerate(history.records(kind))}
        return found

    def _put_run(self, database: sqlite3.Connection, left_out: _Records, *, ended: bool = False) -> int:
        """Writes the run, and how many details were left out for lack of room. Returns its number."""
        ledger = self._ledger
        lacking = sum(len(record) if kind == TRACES else 1 for (kind, _), record in left_out.items())
        run = Run(
            id=self._run,
            started=self._started,
            pid=self._pid,
            command=shlex.join(list_options(sys.argv)),
            stats=ledger.stats(),
            phases=ledger.phases(),
            unrecorded=ledger.history.unrecorded + lacking,
            models=ledger.history.models,
            updated=time.time(),
            ended=ended,
        )
        return put_run(database, run)


def _put_records(database: sqlite3.Connection, run: int, records: _Records) -> None:
    for (kind, number), record in records.items():
        if isinstance(number, str):
            put_template(database, run, record)
        else:
            put_record(database, run, kind, number, (pack_trace if kind == TRACES else encode_record)(record))


def _warn(path: Path, error: Exception) -> None:
    reason = str(error) if isinstance(error, RecordError) else f"{path} cannot be written ({error})"
    advice = "" if isinstance(error, RecordError) else f": set {DIRECTORY.name} to a directory that can be written"
    warn(f"this run is not recorded. {reason}{advice}")
