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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from fusioncache.process import forks, sqlite_file
from fusioncache.process.private_files import make_folders, protect
from fusioncache.process.secrets import list_options
from fusioncache.process.settings import DIRECTORY
from fusioncache.process.warning import warn
from fusioncache.record.history import Observations
from fusioncache.record.ledger import Ledger
from fusioncache.record.observations import RegionRecord
from fusioncache.record.schema import (
    IN_PAST,
    LOCK_SECONDS,
    OF_RUNS,
    SCHEMA,
    RecordError,
    Row,
    encode_choice,
    encode_compile,
    encode_lines,
    encode_placement,
    encode_region,
    encode_stats,
    encode_template,
    encode_use,
    make_format_error,
    record_path,
)
from fusioncache.record.stats import Stats, TemplateStats

MOST_RUNS = 100
MOST_REGIONS = 200_000
"""The oldest runs go when all runs together have more. The newest one stays whatever it has."""
MOST_PAST_RUNS = 10_000
"""How many runs are counted of which nothing else is left."""

APPEND_LOCK_SECONDS = 1.0
"""How long a step waits while another process writes."""
APPEND_SECONDS = 0.5
"""How long what happens in steps is gathered after something was written."""


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
        self._saved: _Snapshot | None = None
        self._whole = True
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
            if not sqlite_file.is_locked(error):
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
            phases = json.dumps(self._ledger.phases().to_dict())
            with open_for_writing(self._path, LOCK_SECONDS) as database:
                ended = "UPDATE runs SET updated = ?, ended = 1, phases = ? WHERE id = ?"
                database.execute(ended, (time.time(), phases, self._run))

    def _save(self, lock_seconds: float) -> None:
        start = time.perf_counter()
        history = self._ledger.history
        now = _Snapshot(self._ledger.stats(), history.models)
        # A run is one that traced something, even if there was nothing in it to fuse.
        if (now.stats == Stats() and not history.traces) or (now == self._saved and not history.changed):
            return
        # Until this one is written, because then the next has to write what this one took.
        whole, self._whole = self._whole, True
        with open_for_writing(self._path, lock_seconds) as database:
            # Other processes may have let this run be forgotten since.
            new = whole or not database.execute("SELECT 1 FROM runs WHERE id = ?", (self._run,)).fetchone()
            templates, observed = self._ledger.take_changed(), history.take_changes()
            self._write_run(database, now)
            for template in self._ledger.templates() if new else templates:
                self._write_template(database, template)
            self._write_observations(database, history.read() if new else observed)
            if new or observed.regions:
                database.execute("DELETE FROM past WHERE id = ?", (self._run,))
                forget_old_runs(database)
        self._saved, self._whole = now, False
        history.add_seconds("recording", time.perf_counter() - start)

    def _write_run(self, database: sqlite3.Connection, now: _Snapshot) -> None:
        put_row(
            database,
            "runs",
            {
                "id": self._run,
                "started": self._started,
                "updated": time.time(),
                "ended": False,
                "pid": self._pid,
                "command": _command_line(),
                "models": json.dumps(now.models),
                **encode_stats(now.stats),
                "phases": json.dumps(self._ledger.phases().to_dict()),
                "unrecorded": self._ledger.history.unrecorded,
            },
        )

    def _write_template(self, database: sqlite3.Connection, template: TemplateStats) -> None:
        put_row(database, "templates", encode_template(template))
        put_row(database, "uses", {"run": self._run, **encode_use(template)})

    def _write_observations(self, database: sqlite3.Connection, observed: Observations) -> None:
        for number, region in observed.regions.items():
            row = {**encode_region(region), "lines": _lines_id(database, region)}
            put_row(database, "regions", {"run": self._run, "number": number, **row})
        for number, choice in observed.choices.items():
            put_row(database, "choices", {"run": self._run, "number": number, **encode_choice(choice)})
        for number, placement in observed.placements.items():
            put_row(database, "placements", {"run": self._run, "number": number, **encode_placement(placement)})
        for number, compile_ in observed.compiles.items():
            put_row(database, "compiles", {"run": self._run, "number": number, **encode_compile(compile_)})


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """The counts of a run at one moment that are a reason to save it when they change. Seconds of phases are not."""

    stats: Stats
    models: tuple[str, ...]


def _lines_id(database: sqlite3.Connection, region: RegionRecord) -> int:
    text = encode_lines(region.source)
    database.execute("INSERT OR IGNORE INTO lines (text) VALUES (?)", (text,))
    id_: int = database.execute("SELECT id FROM lines WHERE text = ?", (text,)).fetchone()[0]
    return id_


def put_row(database: sqlite3.Connection, table: str, row: Row) -> None:
    """Inserts a row, or replaces the one with the same key."""
    names, marks = ", ".join(row), ", ".join(f":{name}" for name in row)
    database.execute(f"INSERT OR REPLACE INTO {table} ({names}) VALUES ({marks})", row)


def _command_line() -> str:
    # Arguments that are not valid text come as lone surrogates, which sqlite does not take.
    return shlex.join(list_options(sys.argv)).encode(errors="backslashreplace").decode()


def forget_old_runs(database: sqlite3.Connection) -> None:
    """Deletes the oldest runs, and what only they used, where there are too many."""
    # By the last save, not the start: a run that is still going on is not old.
    ranked = """SELECT id, row_number() OVER newest AS rank, sum(regions) OVER newest AS so_far
        FROM runs WINDOW newest AS (ORDER BY updated DESC)"""
    old = f"SELECT id FROM ({ranked}) WHERE rank > ? OR (rank > 1 AND so_far > ?)"
    forgotten = [id_ for (id_,) in database.execute(old, (MOST_RUNS, MOST_REGIONS))]
    if not forgotten:
        return
    for id_ in forgotten:
        database.execute(f"INSERT OR REPLACE INTO past SELECT {IN_PAST} FROM runs WHERE id = ?", (id_,))
        database.execute("DELETE FROM runs WHERE id = ?", (id_,))
    newest = "SELECT id FROM past ORDER BY started DESC LIMIT ?"
    database.execute(f"DELETE FROM past WHERE id NOT IN ({newest})", (MOST_PAST_RUNS,))
    for table in OF_RUNS:
        database.execute(f"DELETE FROM {table} WHERE run NOT IN (SELECT id FROM runs)")
    database.execute("DELETE FROM templates WHERE digest NOT IN (SELECT digest FROM uses)")
    database.execute("DELETE FROM lines WHERE id NOT IN (SELECT lines FROM regions)")


@contextmanager
def open_for_writing(path: Path, lock_seconds: float) -> Iterator[sqlite3.Connection]:
    """Opens the record for one transaction, which is undone where anything is raised."""
    make_folders(path.parent)
    for other in [] if path.exists() else path.parent.glob("record-*.sqlite"):
        protect(other)  # which another version made
    try:
        with SCHEMA.write(path, lock_seconds) as database:
            yield database
    except sqlite_file.OtherVersion as other:
        raise make_format_error(path, other) from other


def _warn(path: Path, error: Exception) -> None:
    reason = str(error) if isinstance(error, RecordError) else f"{path} cannot be written ({error})"
    advice = "" if isinstance(error, RecordError) else f": set {DIRECTORY.name} to a directory that can be written"
    warn(f"no record of this run is kept. {reason}{advice}")
