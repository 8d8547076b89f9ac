"""The record of runs, in a file of SQLite: its tables, what writes and reads it, and how large and how old it gets."""

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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from operator import ne
from pathlib import Path
from typing import Any

from fusioncache.ir import codec
from fusioncache.observe.record.kept_regions import encode_record, pack_trace, unpack, unpack_trace
from fusioncache.observe.record.ledger import Ledger
from fusioncache.observe.record.observations import (
    ChoiceRecord,
    CompileRecord,
    Lifetime,
    PlacementRecord,
    Record,
    RegionRecord,
    Run,
)
from fusioncache.observe.record.stats import Stats, TemplateStats
from fusioncache.process import files, forks
from fusioncache.process.files import Schema, make_folders, protect
from fusioncache.process.secrets import list_options
from fusioncache.process.settings import DIRECTORY, find_directory
from fusioncache.process.warning import warn

MAX_BYTES = 64 << 20
"""The most that the file may have. The newest run stays, and gets no more details when it has that much itself."""
MAX_AGE = 90 * 86400.0
"""Seconds after which a run that was not saved since is forgotten."""
FILL = 0.8
"""The part of what there may be to which runs are forgotten, so that it is not done with each save."""
MOST_RUNS = 100
MOST_PAST_RUNS = 10_000
"""How many runs are counted of which nothing else is left."""
LOCK_SECONDS = 10.0
"""How long a process waits while another one writes."""

TOTALS = tuple(each.name for each in fields(Lifetime) if each.name not in ("since", "runs"))
"""The fields of ``Stats`` that are summed over all runs, those included of which nothing else is left."""
USES, TRACES = "uses", "traces"
"""The kinds of records of which a run has templates and traces. Others are named as their classes."""

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
"""A run that was forgotten has no content, and no records. Columns without a type keep integers and floats as they are.
The number of a template's record is the template's id.
"""


class RecordError(Exception):
    """The record cannot be read or written; the message says what is wrong and what to do."""


def _make_error(path: Path, version: int) -> RecordError:
    return RecordError(
        f"{path} has format {version} and this fusioncache reads format {SCHEMA.version}: move it away, or set "
        f"{DIRECTORY.name} to another directory"
    )


# What a process wrote stays if it is killed. To outlast a power failure as well, each write would have to wait for the
# disk, which takes fifty times as long, in the middle of a step.
SCHEMA = Schema(17, _TABLES, "PRAGMA synchronous = OFF", _make_error, is_vacuumed=True)
"""Its version is in the name of the file: what another version wrote stays as it is, in a file of its own.

Those before 13 have the values of command lines.
"""


def record_path() -> Path:
    """Returns where the record is: in ``FUSIONCACHE_DIR`` if that is set, else in the platform's cache directory."""
    return find_directory() / f"record-{SCHEMA.version}.sqlite"


def put_row(database: sqlite3.Connection, table: str, row: Mapping[str, Any]) -> None:
    """Inserts a row, or updates the one with the same key."""
    names, marks, new = (", ".join(each.format(name) for name in row) for each in ("{0}", ":{0}", "{0} = excluded.{0}"))
    database.execute(f"INSERT INTO {table} ({names}) VALUES ({marks}) ON CONFLICT DO UPDATE SET {new}", row)


def find_run(database: sqlite3.Connection, run: str) -> int | None:
    """Returns the number of a run that is not forgotten, by its id; None if it is not there."""
    return _first(database, "SELECT number FROM runs WHERE id = ? AND content IS NOT NULL", run)


def put_run(database: sqlite3.Connection, run: Run) -> int:
    """Writes a run. Returns its number."""
    totals = {name: getattr(run.stats, name) for name in TOTALS}
    row = {"id": run.id, "started": run.started, "updated": run.updated, **totals, "content": encode_record(run)}
    put_row(database, "runs", row)
    found = find_run(database, run.id)
    assert found is not None
    return found


def put_template(database: sqlite3.Connection, run: int, template: TemplateStats) -> None:
    """Writes a template's share in a run, by its number, and the template if it is new."""
    content = zlib.compress(json.dumps(template.ingredients).encode())
    values = (template.digest, template.name, template.ops, content)
    database.execute("INSERT OR IGNORE INTO templates (digest, name, ops, content) VALUES (?, ?, ?, ?)", values)
    number = _first(database, "SELECT id FROM templates WHERE digest = ?", template.digest)
    assert number is not None
    share = replace(template, name="", digest="", ops=0, ingredients=())
    put_record(database, run, USES, number, encode_record(share))


def has_template(database: sqlite3.Connection, run: int, digest: str) -> bool:
    """Returns whether a template has a share in a run, by its number."""
    query = f"SELECT 1 FROM records JOIN templates ON id = number WHERE run = ? AND kind = '{USES}' AND digest = ?"
    return _first(database, query, run, digest) is not None


def put_record(database: sqlite3.Connection, run: int, kind: str, number: int, content: bytes) -> None:
    """Writes what a run observed, or replaces what it has under this number."""
    put_row(database, "records", {"run": run, "kind": kind, "number": number, "content": content})


def make_room(
    database: sqlite3.Connection, run: int | None = None, *, max_bytes: int | None = None, max_age: float | None = None
) -> int:
    """Deletes old runs, and what only they used, where the file is too large, or they are too many or too old.

    By the last save, not the start: a run that is still going on is not old. The newest one stays.

    Args:
        database: in a transaction.
        run: the number of the newest run, if it is known: clocks may have been set back.
        max_bytes: the most that the file may have; by default ``MAX_BYTES``.
        max_age: the seconds; by default ``MAX_AGE``.

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
    """Returns the bytes that the file has when the transaction has ended."""
    pages, free, size = (
        database.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * size)


def has_room(database: sqlite3.Connection) -> bool:
    """Returns whether more may be written into the file."""
    return measure(database) <= MAX_BYTES


def _forget(database: sqlite3.Connection, runs: Sequence[int]) -> None:
    if not runs:
        return
    for number in runs:
        database.execute("DELETE FROM records WHERE run = ?", (number,))
        database.execute("UPDATE runs SET content = NULL WHERE number = ?", (number,))
    newest = "SELECT number FROM runs WHERE content IS NULL ORDER BY started DESC LIMIT ?"
    database.execute(f"DELETE FROM runs WHERE content IS NULL AND number NOT IN ({newest})", (MOST_PAST_RUNS,))
    database.execute(f"DELETE FROM templates WHERE id NOT IN (SELECT number FROM records WHERE kind = '{USES}')")


def _first(database: sqlite3.Connection, query: str, *parameters: Any) -> int | None:
    row = database.execute(query, parameters).fetchone()
    return None if row is None else row[0]


_OF_RUN = "run = (SELECT number FROM runs WHERE id = :run)"
_USES = f"""SELECT digest, name, ops, templates.content AS text, records.content
    FROM records JOIN templates ON templates.id = records.number
    JOIN runs ON runs.number = records.run WHERE kind = '{USES}'"""


class RecordReader:
    """Reads what runs left behind.

    Args:
        path: the file; by default the one at ``record_path()``.

    Raises:
        RecordError: if there is no record, or it cannot be read. So do all methods.
    """

    def __init__(self, path: Path | None = None):
        self.path = path or record_path()
        if not _has_content(self.path):
            raise RecordError(_no_record(self.path))
        self._rows("SELECT 1")

    def runs(self) -> tuple[Run, ...]:
        """Returns all runs, newest first."""
        rows = self._rows("SELECT content FROM runs WHERE content IS NOT NULL ORDER BY started DESC, id")
        return self._decode(lambda row: codec.decode(Run, row["content"], "run"), rows)

    def templates(self, run: str, *, texts: bool = True) -> tuple[TemplateStats, ...]:
        """Returns a run's templates, the most expensive first, with the texts of their keys if these are asked for."""
        return self._read_templates(self._rows(f"{_USES} AND runs.id = :run", run=run), texts=texts)

    def regions(self, run: str, template: str | None = None) -> tuple[RegionRecord, ...]:
        """Returns a run's regions, in the order of its traces and of their positions in these.

        Args:
            run: its id.
            template: only those with the template of this digest.
        """
        has_template = f"""SELECT records.run FROM records JOIN templates ON id = number
            WHERE kind = '{USES}' AND digest = :template"""
        wanted = f"{_OF_RUN} AND kind = '{TRACES}' AND (:template IS NULL OR run IN ({has_template}))"
        query = f"SELECT content FROM records WHERE {wanted} ORDER BY number"
        traces = self._decode(lambda row: unpack_trace(row["content"]), self._rows(query, run=run, template=template))
        return tuple(region for trace in traces for region in trace if template in (None, region.digest))

    def records[T: Record](self, run: str, kind: type[T]) -> tuple[T, ...]:
        """Returns what a run observed of one kind, in the order in which it did. Its regions are in ``regions``."""
        name = kind.__name__
        rows = self._rows(f"SELECT content FROM records WHERE {_OF_RUN} AND kind = :kind", run=run, kind=name)
        return self._decode(lambda row: codec.decode(kind, row["content"], name), rows)

    def lifetime(self) -> Lifetime:
        """Returns what all runs did, since the first of them."""
        sums = ", ".join(f"sum({name})" for name in TOTALS)
        ((since, runs, *totals),) = self._rows(f"SELECT min(started), count(*), {sums} FROM runs")
        return Lifetime(since or 0.0, runs, *(total or 0 for total in totals))

    def find_templates(self, prefix: str) -> tuple[TemplateStats, ...]:
        """Returns the templates whose digest or name starts with ``prefix``, each with the counts of its newest run.

        Where digests or names are equal to ``prefix``, only these. The most expensive come first.
        """
        newest = self._newest("(instr(digest, :prefix) = 1 OR instr(name, :prefix) = 1)", prefix=prefix)
        return tuple(each for each in newest if prefix in (each.digest, each.name)) or newest

    def before(self, run: str) -> tuple[TemplateStats, ...]:
        """Returns the templates of earlier runs than this one, each with the counts of the newest of these."""
        return self._newest("runs.started < (SELECT started FROM runs WHERE id = :run)", run=run)

    def _newest(self, wanted: str, **parameters: str) -> tuple[TemplateStats, ...]:
        """Returns the templates of such runs or names, each with its newest run, the most expensive first."""
        rows = self._rows(f"{_USES} AND {wanted} ORDER BY runs.started, runs.id DESC", **parameters)
        return self._read_templates({row["digest"]: row for row in rows}.values())

    def _read_templates(self, rows: Iterable[sqlite3.Row], *, texts: bool = True) -> tuple[TemplateStats, ...]:
        found = self._decode(lambda row: _decode_template(row, row["text"] if texts else None), rows)
        return tuple(sorted(found, key=lambda each: (-each.compile_seconds, -each.regions, each.name, each.digest)))

    def _rows(self, query: str, **parameters: str | int | None) -> list[sqlite3.Row]:
        try:
            with SCHEMA.open_to_read(self.path, LOCK_SECONDS) as database:
                return database.execute(query, parameters).fetchall()
        except sqlite3.Error as error:
            if files.is_locked(error):
                raise RecordError(f"{self.path} is being written by another process: try again") from error
            raise self._unreadable(error) from error
        except UnicodeEncodeError:
            return []  # what was typed is no valid text, so nothing in the record has it

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
    advice = f"run a model with fusioncache first, or set {DIRECTORY.name} to the directory of an earlier run"
    others = sorted(other.name for other in path.parent.glob("record-*.sqlite") if other != path)
    found = f" ({', '.join(others)} is there, of another version of fusioncache)" if others else ""
    return f"there is no record at {path}{found}: {advice}"


def has_record() -> bool:
    """Returns whether there is a record in the usual place, readable or not."""
    return _has_content(record_path())


def _has_content(path: Path) -> bool:
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
    """Removes a record while no process writes it. A process that goes on writes its own run again.

    Returns:
        Whether there was one.

    Raises:
        RecordError: if others write it all the time, or it cannot be removed.
    """
    if not os.path.lexists(path):
        return False
    try:
        files.remove_database(path, LOCK_SECONDS)
    except (sqlite3.Error, OSError) as error:
        raise RecordError(f"{path} cannot be removed ({error}): try again, or remove it yourself") from error
    return True


@dataclass(frozen=True, slots=True)
class Pruned:
    """What was forgotten of a record.

    Attributes:
        runs: how many runs.
        bytes_left: what the file has then.
    """

    runs: int
    bytes_left: int


def prune(path: Path, max_bytes: int, max_age: float, *, dry_run: bool) -> Pruned:
    """Forgets old runs as every process does that writes one. The newest stays.

    Args:
        path: of the record, which is there.
        max_bytes: the most that it may have.
        max_age: seconds after which a run that was not saved since is forgotten.
        dry_run: whether nothing is changed.

    Raises:
        RecordError: if others write it all the time, or it is no record of this format.
    """
    try:
        with SCHEMA.open_to_write(path, LOCK_SECONDS) as database:
            runs = make_room(database, max_bytes=max_bytes, max_age=max_age)
            pruned = Pruned(runs, measure(database))
            if dry_run:
                database.rollback()
            return pruned
    except sqlite3.Error as error:
        raise RecordError(f"{path} cannot be written ({error}): try again") from error


APPEND_LOCK_SECONDS = 1.0
"""How long a step waits while another process writes."""
APPEND_SECONDS = 0.5
"""How long what happens in steps is gathered after something was written."""


_Records = dict[tuple[str, int | str], Any]
"""What a run counted and observed, by kinds and numbers: shares of templates by digests, and regions by traces."""


class RecordWriter:
    """Saves a ledger's counts as one run, also when the process exits. Its first failure is its last: it warns once.

    A forked child saves nothing: what its ledger counted is its parent's.
    """

    def __init__(self, ledger: Ledger):
        self._ledger = ledger
        self._path = record_path().absolute()  # a program may change its directory
        self._run = uuid.uuid4().hex
        self._started = time.time()
        self._pid = os.getpid()
        self._lock = forks.lock()
        self._saved: tuple[Stats, tuple[str, ...]] | None = None
        self._known: _Records = {}  # what was written, or had no room
        self._left_out = 0
        self._broken = self._contended = False
        self._next_append = 0.0
        self._waiting: threading.Timer | None = None
        # Keeps the ledger alive to the end, because it may have counted something since it was last saved.
        atexit.register(self.end)

    def save(self) -> None:
        """Writes what was counted since the last time. Never raises."""
        self._guard(lambda: self._save(LOCK_SECONDS))

    def append(self) -> None:
        """Does the same in the middle of a step, where nothing may wait for other processes. Never raises.

        If they write all the time, what happens in steps is left to ``save`` from then on. What happens shortly after
        something was written is written together, beside the steps: a program may call a hundred templates.
        """
        if self._contended:
            return
        wait = self._next_append - time.monotonic()
        if wait <= 0.0:
            self._append_now()
        elif self._waiting is None or not self._waiting.is_alive():
            self._waiting = threading.Timer(wait, self._append_now)
            self._waiting.daemon = True
            self._waiting.start()

    def _append_now(self) -> None:
        self._guard(self._append)
        self._next_append = time.monotonic() + APPEND_SECONDS

    def _guard(self, do: Callable[[], None]) -> None:
        if self._broken or os.getpid() != self._pid:
            return
        with self._lock:
            try:
                do()
            except Exception as error:  # whatever it is, a record is not worth a model
                self._broken = True
                _warn(self._path, error)

    def _append(self) -> None:
        try:
            self._save(APPEND_LOCK_SECONDS)
        except sqlite3.OperationalError as error:
            if not files.is_locked(error):
                raise
            self._contended = True

    def end(self) -> None:
        """Saves the run as one that ended. It is called when the process exits."""
        self.save()
        if self._saved is not None and not self._broken and os.getpid() == self._pid:
            with self._lock, suppress(Exception):  # everything that was counted is there
                self._mark_as_ended()

    def _mark_as_ended(self) -> None:
        if self._path.exists():
            with open_for_writing(self._path, LOCK_SECONDS) as database:
                if find_run(database, self._run) is not None:
                    self._put_run(database, self._left_out, ended=True)

    def _save(self, lock_seconds: float) -> None:
        start = time.perf_counter()
        history = self._ledger.history
        # The counts that are a reason to save a run when they change. Seconds of phases are not.
        now, records = (self._ledger.stats(), history.models), self._list_records()
        # A run is one that traced something, even if there was nothing in it to fuse.
        if (now[0] == Stats() and not history.traces) or (now == self._saved and records == self._known):
            return
        with open_for_writing(self._path, lock_seconds) as database:
            # Other processes may have let this run be forgotten since.
            is_new = find_run(database, self._run) is None
            known, left_out = ({}, 0) if is_new else (self._known, self._left_out)
            changed = {key: record for key, record in records.items() if record != known.get(key)}
            number = self._put_run(database, left_out)
            if is_new or changed:
                make_room(database, number)
                if lacking := self._put_details(database, number, changed, known):
                    left_out += lacking
                    self._put_run(database, left_out)
        self._saved, self._known, self._left_out = now, records, left_out
        history.add_seconds("recording", time.perf_counter() - start)

    def _list_records(self) -> _Records:
        """Returns all that the run counted and observed one by one. What does not change stays the same object."""
        history, traces = self._ledger.history, defaultdict[int, list[RegionRecord]](list)
        for region in history.records(RegionRecord):
            traces[region.trace_number].append(region)
        found: _Records = {(USES, each.digest): each for each in self._ledger.templates()}
        found |= {(TRACES, number): tuple(regions) for number, regions in traces.items()}
        for kind in (ChoiceRecord, PlacementRecord, CompileRecord):
            found |= {(kind.__name__, number): each for number, each in enumerate(history.records(kind))}
        return found

    def _put_details(self, database: sqlite3.Connection, run: int, changed: _Records, known: _Records) -> int:
        """Writes what is new; only what a template counted that is there, if the file is as large as it may be.

        Returns:
            How many templates and observations had no room.
        """
        is_full, lacking = not has_room(database), 0
        for (kind, number), record in changed.items():
            if isinstance(number, str):
                if is_full and not has_template(database, run, number):
                    lacking += 1
                else:
                    put_template(database, run, record)
            elif is_full:
                before = known.get((kind, number), ())
                lacking += sum(map(ne, record, (*before, *[None] * len(record)))) if kind == TRACES else 1
            else:
                put_record(database, run, kind, number, (pack_trace if kind == TRACES else encode_record)(record))
        return lacking

    def _put_run(self, database: sqlite3.Connection, left_out: int, *, ended: bool = False) -> int:
        ledger = self._ledger
        run = Run(
            id=self._run,
            started=self._started,
            pid=self._pid,
            command=shlex.join(list_options(sys.argv)),
            stats=ledger.stats(),
            phases=ledger.phases(),
            unrecorded=ledger.history.unrecorded + left_out,
            models=ledger.history.models,
            updated=time.time(),
            ended=ended,
        )
        return put_run(database, run)


@contextmanager
def open_for_writing(path: Path, lock_seconds: float) -> Iterator[sqlite3.Connection]:
    """Opens the record for one transaction, which is undone where anything is raised."""
    make_folders(path.parent)
    for other in [] if path.exists() else path.parent.glob("record-*.sqlite"):
        protect(other)  # which another version made
    with SCHEMA.open_to_write(path, lock_seconds) as database:
        yield database


def _warn(path: Path, error: Exception) -> None:
    reason = str(error) if isinstance(error, RecordError) else f"{path} cannot be written ({error})"
    advice = "" if isinstance(error, RecordError) else f": set {DIRECTORY.name} to a directory that can be written"
    warn(f"this run is not recorded. {reason}{advice}")
