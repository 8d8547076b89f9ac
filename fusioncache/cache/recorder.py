"""Writes the record of a run. Nothing that goes wrong here reaches the model."""

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
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from fusioncache.cache.ledger import Ledger
from fusioncache.cache.record import (
    DIRECTORY_VARIABLE,
    LOCK_SECONDS,
    SCHEMA_VERSION,
    TABLES,
    RecordError,
    other_format,
    record_path,
)
from fusioncache.cache.stats import Stats, TemplateStats

RUNS_KEPT = 100


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
        self._lock = threading.Lock()
        self._saved: Stats | None = None
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
        stats = self._ledger.stats()
        if not stats.regions or stats == self._saved:
            return
        with _open_for_writing(self._path) as database:
            self._write_run(database, stats)
            for template in self._ledger.templates():
                self._write_template(database, template)
            _forget_old_runs(database)
        self._saved = stats

    def _write_run(self, database: sqlite3.Connection, stats: Stats) -> None:
        _put(
            database,
            "runs",
            id=self._run,
            started=self._started,
            updated=time.time(),
            pid=self._pid,
            command=_command_line(),
            regions=stats.regions,
            templates=stats.templates,
            hits=stats.hits,
            misses=stats.misses,
            bypasses=json.dumps(dict(stats.bypasses)),
            compiles=stats.compiles,
            compile_seconds=stats.compile_seconds,
            loads=stats.loads,
            load_seconds=stats.load_seconds,
            unkept=json.dumps(dict(stats.unkept)),
            saved_seconds=stats.saved_seconds,
            canonicalize_seconds=stats.canonicalize_seconds,
        )

    def _write_template(self, database: sqlite3.Connection, template: TemplateStats) -> None:
        ingredients = json.dumps(template.ingredients)
        _put(database, "templates", digest=template.digest, name=template.name, ingredients=ingredients)
        _put(
            database,
            "uses",
            run=self._run,
            digest=template.digest,
            regions=template.regions,
            hits=template.hits,
            arities=json.dumps(template.arities),
            compiles=template.compiles,
            compile_seconds=template.compile_seconds,
            loads=template.loads,
            load_seconds=template.load_seconds,
        )


def _put(database: sqlite3.Connection, table: str, **row: str | float) -> None:
    names, marks = ", ".join(row), ", ".join(f":{name}" for name in row)
    database.execute(f"INSERT OR REPLACE INTO {table} ({names}) VALUES ({marks})", row)


def _command_line() -> str:
    # Arguments that are not valid text come as lone surrogates, which sqlite does not take.
    return shlex.join(sys.argv).encode(errors="backslashreplace").decode()


def _forget_old_runs(database: sqlite3.Connection) -> None:
    # By the last save, not the start: a run that is still going on is not old.
    old = "SELECT id FROM runs ORDER BY updated DESC LIMIT -1 OFFSET ?"
    database.execute(f"DELETE FROM runs WHERE id IN ({old})", (RUNS_KEPT,))
    database.execute("DELETE FROM uses WHERE run NOT IN (SELECT id FROM runs)")
    database.execute("DELETE FROM templates WHERE digest NOT IN (SELECT digest FROM uses)")


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
    warnings.warn(f"fusioncache: no record of this run is kept. {reason}{advice}", RuntimeWarning, stacklevel=3)
