"""Writes the record of a run. Nothing that goes wrong here reaches the model."""

from __future__ import annotations

import atexit
import json
import os
import shlex
import sqlite3
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from fusioncache import forks
from fusioncache.cache.facts import RegionRecord
from fusioncache.cache.ledger import Ledger
from fusioncache.cache.record import DIRECTORY_VARIABLE, LOCK_SECONDS, RecordError, other_format, record_path
from fusioncache.cache.records import Recorded
from fusioncache.cache.stats import TemplateStats
from fusioncache.cache.tables import (
    OF_RUNS,
    SCHEMA_VERSION,
    TABLES,
    Row,
    choice_row,
    compile_row,
    lines_text,
    region_row,
    stats_row,
    template_row,
    use_row,
)
from fusioncache.warning import warn

RUNS_KEPT = 100
REGIONS_KEPT = 200_000
"""The oldest runs go when all runs together have more. The newest one stays whatever it has."""


class Recorder:
    """Saves a ledger's counts as one run, also when the process exits. Its first failure is its last: it warns once.

    A forked child saves nothing: what its ledger counted is its parent's.
    """

    def __init__(self, ledger: Ledger):
        self._ledger = ledger
        self._path = record_path()
        self._run = uuid.uuid4().hex
        self._started = time.time()
        self._pid = os.getpid()
        self._lock = forks.lock()
        self._saved: _Saved | None = None
        self._broken = False
        # Keeps the ledger alive to the end. A model compiles at its first calls, after the last save of its trace, so
        # the counts of a cache that is dropped before the process exits would be lost otherwise.
        atexit.register(self.save)

    def save(self) -> None:
        """Writes the counts as they are now. Never raises."""
        if self._broken or os.getpid() != self._pid:
            return
        with self._lock:
            try:
                self._save()
            except Exception as error:  # whatever it is, a record is not worth a model
                self._broken = True
                _warn(self._path, error)

    def _save(self) -> None:
        start = time.perf_counter()
        now = _Saved(self._ledger)
        if not (now.stats.regions or now.stats.bypasses) or (self._saved is not None and now.same_counts(self._saved)):
            return
        with _open_for_writing(self._path) as database:
            there = database.execute("SELECT 1 FROM runs WHERE id = ?", (self._run,)).fetchone()
            self._write_run(database, now)
            for template in self._ledger.templates():
                self._write_template(database, template)
            # What was written once need not be again, unless other processes have let this run be forgotten since.
            self._write_records(database, now.recorded, self._saved.recorded if self._saved and there else Recorded())
            _forget_old_runs(database)
        self._saved = now
        self._ledger.records.spent("recording", time.perf_counter() - start)

    def _write_run(self, database: sqlite3.Connection, now: _Saved) -> None:
        _put(
            database,
            "runs",
            {
                "id": self._run,
                "started": self._started,
                "updated": time.time(),
                "pid": self._pid,
                "command": _command_line(),
                **stats_row(now.stats),
                "phases": json.dumps(now.phases.known()),
                "unrecorded": now.recorded.unrecorded,
            },
        )

    def _write_template(self, database: sqlite3.Connection, template: TemplateStats) -> None:
        _put(database, "templates", template_row(template))
        _put(database, "uses", {"run": self._run, **use_row(template)})

    def _write_records(self, database: sqlite3.Connection, now: Recorded, before: Recorded) -> None:
        for number, region in _changed(now.regions, before.regions):
            row = {**region_row(region), "lines": _lines_id(database, region)}
            _put(database, "regions", {"run": self._run, "number": number, **row})
        for number, choice in _changed(now.choices, before.choices):
            _put(database, "choices", {"run": self._run, "number": number, **choice_row(choice)})
        for number, made in _changed(now.compiles, before.compiles):
            _put(database, "compiles", {"run": self._run, "number": number, **compile_row(made)})


class _Saved:
    """What a ledger had counted at one moment."""

    def __init__(self, ledger: Ledger):
        self.stats = ledger.stats()
        self.phases = ledger.phases()
        self.recorded = ledger.records.now()

    def same_counts(self, other: _Saved) -> bool:
        # Without the seconds that recording took, or each save would be a reason for the next one.
        phases = {name: seconds for name, seconds in self.phases.known().items() if name != "recording"}
        return self.stats == other.stats and all(getattr(other.phases, name) == phases[name] for name in phases)


def _changed[T](now: Sequence[T], before: Sequence[T]) -> Iterator[tuple[int, T]]:
    """The values that are not the very ones of before, with their places."""
    for number, value in enumerate(now):
        if number >= len(before) or value is not before[number]:
            yield number, value


def _lines_id(database: sqlite3.Connection, region: RegionRecord) -> int:
    text = lines_text(region.source)
    database.execute("INSERT OR IGNORE INTO lines (text) VALUES (?)", (text,))
    id_: int = database.execute("SELECT id FROM lines WHERE text = ?", (text,)).fetchone()[0]
    return id_


def _put(database: sqlite3.Connection, table: str, row: Row) -> None:
    names, marks = ", ".join(row), ", ".join(f":{name}" for name in row)
    database.execute(f"INSERT OR REPLACE INTO {table} ({names}) VALUES ({marks})", row)


def _command_line() -> str:
    # Arguments that are not valid text come as lone surrogates, which sqlite does not take.
    return shlex.join(sys.argv).encode(errors="backslashreplace").decode()


def _forget_old_runs(database: sqlite3.Connection) -> None:
    # By the last save, not the start: a run that is still going on is not old.
    ranked = """SELECT id, row_number() OVER newest AS place, sum(regions) OVER newest AS so_far
        FROM runs WINDOW newest AS (ORDER BY updated DESC)"""
    old = f"SELECT id FROM ({ranked}) WHERE place > ? OR (place > 1 AND so_far > ?)"
    forgotten = database.execute(f"DELETE FROM runs WHERE id IN ({old})", (RUNS_KEPT, REGIONS_KEPT)).rowcount
    if not forgotten:
        return
    for table in OF_RUNS:
        database.execute(f"DELETE FROM {table} WHERE run NOT IN (SELECT id FROM runs)")
    database.execute("DELETE FROM templates WHERE digest NOT IN (SELECT digest FROM uses)")
    database.execute("DELETE FROM lines WHERE id NOT IN (SELECT lines FROM regions)")


@contextmanager
def _open_for_writing(path: Path) -> Iterator[sqlite3.Connection]:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    connection = sqlite3.connect(path, timeout=LOCK_SECONDS, isolation_level=None)
    with closing(connection) as database, database:
        # A transaction that begins by reading fails at once when another process writes; this one waits its turn.
        database.execute("BEGIN IMMEDIATE")
        _make_tables(database, path)
        yield database


def _make_tables(database: sqlite3.Connection, path: Path) -> None:
    version = database.execute("PRAGMA user_version").fetchone()[0]
    if version == SCHEMA_VERSION:
        return
    # Any other program's sqlite file may have version 0, but only a new file has nothing in it.
    if version or database.execute("SELECT 1 FROM sqlite_master").fetchone():
        raise RecordError(other_format(path, version))
    for table in TABLES:
        database.execute(table)
    database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _warn(path: Path, error: Exception) -> None:
    reason = str(error) if isinstance(error, RecordError) else f"{path} cannot be written ({error})"
    advice = "" if isinstance(error, RecordError) else f": set {DIRECTORY_VARIABLE} to a directory that can be written"
    warn(f"no record of this run is kept. {reason}{advice}")
