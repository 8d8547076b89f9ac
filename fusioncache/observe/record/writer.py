"""Writes the record of a run. Nothing that goes wrong here reaches the model."""

from __future__ import annotations

import atexit
import os
import shlex
import sqlite3
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from fusioncache.observe.record.ledger import Ledger, Observed
from fusioncache.observe.record.observations import RegionRecord, Run
from fusioncache.observe.record.schema import (
    LOCK_SECONDS,
    SCHEMA,
    RecordError,
    RunRecords,
    find_run,
    has_room,
    make_room,
    put_run,
    record_path,
)
from fusioncache.observe.record.stats import Stats, TemplateStats
from fusioncache.process import files, forks
from fusioncache.process.files import make_folders, protect
from fusioncache.process.secrets import list_options
from fusioncache.process.settings import DIRECTORY
from fusioncache.process.warning import warn

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
        self._saved: tuple[Stats, tuple[str, ...]] | None = None
        self._left_out = 0
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
                    self._put_run(database, ended=True)

    def _save(self, lock_seconds: float) -> None:
        start = time.perf_counter()
        history = self._ledger.history
        # The counts that are a reason to save a run when they change. Seconds of phases are not.
        now = (self._ledger.stats(), history.models)
        # A run is one that traced something, even if there was nothing in it to fuse.
        if (now[0] == Stats() and not history.traces) or (now == self._saved and not history.changed):
            return
        # Until this one is written, because then the next has to write what this one took.
        whole, self._whole = self._whole, True
        with open_for_writing(self._path, lock_seconds) as database:
            # Other processes may have let this run be forgotten since.
            new = whole or find_run(database, self._run) is None
            templates, observed = self._ledger.take_changed(), history.take_changes(whole=new)
            if new:
                templates, self._left_out = self._ledger.templates(), 0
            number = self._put_run(database)
            if new or templates or any(observed.values()):
                make_room(database, number)
                self._put_details(database, number, templates, observed)
        self._saved, self._whole = now, False
        history.add_seconds("recording", time.perf_counter() - start)

    def _put_details(
        self, database: sqlite3.Connection, number: int, templates: Sequence[TemplateStats], observed: Observed
    ) -> None:
        """Writes what is new; only what a template counted that is there, if the file is as large as it may be."""
        records, is_full = RunRecords(database, number), not has_room(database)
        for template in templates:
            if is_full and not records.has_template(template.digest):
                self._left_out += 1
            else:
                records.put_template(template)
        if is_full:
            self._left_out += sum(map(len, observed.values()))
            self._put_run(database)
            return
        changed = {region.trace_number for region in observed.get(RegionRecord, {}).values()}
        regions = self._ledger.history.records(RegionRecord) if changed else ()
        records.put_observations(observed, [region for region in regions if region.trace_number in changed])

    def _put_run(self, database: sqlite3.Connection, *, ended: bool = False) -> int:
        ledger = self._ledger
        run = Run(
            id=self._run,
            started=self._started,
            pid=self._pid,
            command=shlex.join(list_options(sys.argv)),
            stats=ledger.stats(),
            phases=ledger.phases(),
            unrecorded=ledger.history.unrecorded + self._left_out,
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
