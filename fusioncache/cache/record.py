"""The record of runs on disk, which the command line reads: one sqlite file."""

from __future__ import annotations

import atexit
import json
import os
import sqlite3
import sys
import time
import uuid
import warnings
import weakref
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from fusioncache.cache.ledger import Ledger
from fusioncache.cache.stats import Stats, TemplateStats

DIRECTORY_VARIABLE = "FUSIONCACHE_DIR"
SCHEMA_VERSION = 1
RUNS_KEPT = 100

_SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (
    id TEXT PRIMARY KEY, started REAL NOT NULL, updated REAL NOT NULL, pid INTEGER NOT NULL, command TEXT NOT NULL,
    regions INTEGER NOT NULL, templates INTEGER NOT NULL, hits INTEGER NOT NULL, misses INTEGER NOT NULL,
    bypasses TEXT NOT NULL, compiles INTEGER NOT NULL, compile_seconds REAL NOT NULL, saved_seconds REAL NOT NULL,
    canonicalize_seconds REAL NOT NULL);
CREATE TABLE IF NOT EXISTS templates (digest TEXT PRIMARY KEY, name TEXT NOT NULL, ingredients TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS uses (
    run TEXT NOT NULL REFERENCES runs(id) ON DELETE CASCADE, digest TEXT NOT NULL REFERENCES templates(digest),
    regions INTEGER NOT NULL, hits INTEGER NOT NULL, arities TEXT NOT NULL, compiles INTEGER NOT NULL,
    compile_seconds REAL NOT NULL, PRIMARY KEY (run, digest));
"""


class RecordError(Exception):
    """The record cannot be read or written; the message says what is wrong and what to do."""


def record_path() -> Path:
    """Where the record is: in ``FUSIONCACHE_DIR`` if that is set, else in the platform's cache directory."""
    directory = os.environ.get(DIRECTORY_VARIABLE) or platformdirs.user_cache_dir("fusioncache", appauthor=False)
    return Path(directory) / "record.sqlite"


@dataclass(frozen=True, slots=True)
class Run:
    """One cache of one process.

    Attributes:
        id: of the run.
        started: seconds since the epoch.
        pid: process that ran it.
        command: its command line.
        stats: its counts when it was last saved.
    """

    id: str
    started: float
    pid: int
    command: str
    stats: Stats


class Recorder:
    """Saves a ledger's counts as one run. Its first failure is its last: it warns and gives up."""

    def __init__(self, ledger: Ledger):
        self._ledger = ledger
        self._run = uuid.uuid4().hex
        self._started = time.time()
        self._broken = False
        _save_at_exit(self)

    def save(self) -> None:
        """Writes the counts as they are now."""
        stats = self._ledger.stats()
        if self._broken or not stats.regions:
            return
        try:
            with _open_for_writing() as database:
                self._write(database, stats)
        except (OSError, sqlite3.Error, RecordError) as error:
            self._broken = True
            warnings.warn(
                f"fusioncache: no record of this run is kept, {error}. Set {DIRECTORY_VARIABLE} to a directory that "
                "can be written.",
                RuntimeWarning,
                stacklevel=2,
            )

    def _write(self, database: sqlite3.Connection, stats: Stats) -> None:
        row = (self._run, self._started, time.time(), os.getpid(), " ".join(sys.argv), *_stats_row(stats))
        database.execute(f"INSERT OR REPLACE INTO runs VALUES ({', '.join('?' * len(row))})", row)
        for template in self._ledger.templates():
            ingredients = json.dumps(template.ingredients)
            identity = (template.digest, template.name, ingredients)
            database.execute("INSERT OR IGNORE INTO templates VALUES (?, ?, ?)", identity)
            counts = (template.regions, template.hits, json.dumps(template.arities))
            costs = (template.compiles, template.compile_seconds)
            database.execute(
                "INSERT OR REPLACE INTO uses VALUES (?, ?, ?, ?, ?, ?, ?)",
                (self._run, template.digest, *counts, *costs),
            )
        _forget_old_runs(database)


def _save_at_exit(recorder: Recorder) -> None:
    alive = weakref.ref(recorder)

    def save() -> None:
        if (recorder := alive()) is not None:
            recorder.save()

    atexit.register(save)


def _stats_row(stats: Stats) -> tuple:
    counts = (stats.regions, stats.templates, stats.hits, stats.misses, json.dumps(dict(stats.bypasses)))
    return *counts, stats.compiles, stats.compile_seconds, stats.saved_seconds, stats.canonicalize_seconds


def _forget_old_runs(database: sqlite3.Connection) -> None:
    old = "SELECT id FROM runs ORDER BY started DESC LIMIT -1 OFFSET ?"
    database.execute(f"DELETE FROM uses WHERE run IN ({old})", (RUNS_KEPT,))
    database.execute(f"DELETE FROM runs WHERE id IN ({old})", (RUNS_KEPT,))
    database.execute("DELETE FROM templates WHERE digest NOT IN (SELECT digest FROM uses)")


@contextmanager
def _open_for_writing() -> Iterator[sqlite3.Connection]:
    path = record_path()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with closing(sqlite3.connect(path, timeout=10)) as database, database:
        version = database.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, SCHEMA_VERSION):
            raise RecordError(_other_version(path, version))
        database.executescript(_SCHEMA + f"PRAGMA user_version = {SCHEMA_VERSION};")
        yield database


def _other_version(path: Path, version: int) -> str:
    return f"{path} has format {version} and this fusioncache reads format {SCHEMA_VERSION}: move it away"


class Record:
    """Reads what runs left behind.

    Raises:
        RecordError: if there is no record, or it cannot be read.
    """

    def __init__(self, path: Path | None = None):
        self.path = path or record_path()
        if not self.path.exists():
            raise RecordError(
                f"there is no record at {self.path}: run a model with fusioncache first, or set {DIRECTORY_VARIABLE} "
                "to the directory of an earlier run"
            )
        version = self._rows("PRAGMA user_version")[0][0]
        if version != SCHEMA_VERSION:
            raise RecordError(_other_version(self.path, version))

    def runs(self) -> tuple[Run, ...]:
        """All runs, newest first."""
        columns = "id, started, pid, command, regions, templates, hits, misses, bypasses, compiles, compile_seconds"
        rows = self._rows(f"SELECT {columns}, saved_seconds, canonicalize_seconds FROM runs ORDER BY started DESC")
        return tuple(Run(*row[:4], Stats(*row[4:8], json.loads(row[8]), *row[9:])) for row in rows)

    def templates(self, run: str) -> tuple[TemplateStats, ...]:
        """A run's templates, the most expensive first."""
        return self._templates("WHERE uses.run = ?", (run,))

    def find(self, prefix: str) -> tuple[TemplateStats, ...]:
        """The templates whose digest, or whose name, starts with ``prefix``; each with its newest run's counts."""
        rows = self._templates(
            "JOIN runs ON runs.id = uses.run WHERE instr(templates.digest, ?) = 1 OR instr(templates.name, ?) = 1 "
            "GROUP BY templates.digest HAVING max(runs.started)",
            (prefix, prefix),
        )
        exact = tuple(row for row in rows if prefix in (row.digest, row.name))
        return exact or rows

    def _templates(self, where: str, parameters: tuple) -> tuple[TemplateStats, ...]:
        columns = "name, templates.digest, ingredients, regions, hits, arities, uses.compiles, uses.compile_seconds"
        if "JOIN runs" in where:
            columns = columns.replace("regions, hits", "uses.regions, uses.hits")
        rows = self._rows(
            f"SELECT {columns} FROM uses JOIN templates ON templates.digest = uses.digest {where} "
            "ORDER BY uses.compile_seconds DESC, uses.regions DESC, name",
            parameters,
        )
        return tuple(
            TemplateStats(
                name=name,
                digest=digest,
                ingredients=tuple((part, text) for part, text in json.loads(ingredients)),
                regions=regions,
                hits=hits,
                arities=tuple(tuple(arity) for arity in json.loads(arities)),
                compiles=compiles,
                compile_seconds=seconds,
            )
            for name, digest, ingredients, regions, hits, arities, compiles, seconds in rows
        )

    def _rows(self, query: str, parameters: tuple = ()) -> list[tuple]:
        try:
            with closing(sqlite3.connect(f"file:{self.path}?mode=ro", uri=True, timeout=10)) as database:
                return database.execute(query, parameters).fetchall()
        except sqlite3.Error as error:
            raise RecordError(f"{self.path} cannot be read ({error}): move it away to start a new one") from error
