"""The record of runs on disk, one sqlite file: where it is, what is in it, and how to read it."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from fusioncache.cache.facts import ChoiceRecord, CompileRecord, Phases, RegionRecord
from fusioncache.cache.stats import Stats, TemplateStats
from fusioncache.cache.tables import (
    SCHEMA_VERSION,
    choice_of,
    compile_of,
    phases_of,
    region_of,
    stats_of,
    template_of,
)

DIRECTORY_VARIABLE = "FUSIONCACHE_DIR"
LOCK_SECONDS = 10.0
"""How long a process waits while another one writes."""

_USES = """
SELECT templates.name, templates.digest, templates.ingredients,
    uses.regions, uses.hits, uses.arities, uses.compiles, uses.compile_seconds, uses.loads, uses.load_seconds
FROM uses JOIN templates ON templates.digest = uses.digest JOIN runs ON runs.id = uses.run
"""


class RecordError(Exception):
    """The record cannot be read or written; the message says what is wrong and what to do."""


def record_path() -> Path:
    """Where the record is: in ``FUSIONCACHE_DIR`` if that is set, else in the platform's cache directory."""
    directory = os.environ.get(DIRECTORY_VARIABLE)
    if not directory:
        import platformdirs

        directory = platformdirs.user_cache_dir("fusioncache", appauthor=False)
    return Path(directory) / f"record-{SCHEMA_VERSION}.sqlite"


@dataclass(frozen=True, slots=True)
class Run:
    """One cache of one process.

    Attributes:
        id: of the run.
        started: seconds since the epoch.
        pid: process that ran it.
        command: its command line.
        stats: its counts when it was last saved.
        phases: where its seconds had gone by then.
        unrecorded: how many regions, streams and programs of it the record had no room for.
    """

    id: str
    started: float
    pid: int
    command: str
    stats: Stats
    phases: Phases = field(default_factory=Phases)
    unrecorded: int = 0


class Record:
    """Reads what runs left behind.

    Args:
        path: the file; by default the one at ``record_path()``.

    Raises:
        RecordError: if there is no record, or it cannot be read. So do all methods.
    """

    def __init__(self, path: Path | None = None):
        self.path = path or record_path()
        if not _has_content(self.path):
            raise RecordError(
                f"there is no record at {self.path}: run a model with fusioncache first, or set {DIRECTORY_VARIABLE} "
                "to the directory of an earlier run"
            )
        version = self._rows("PRAGMA user_version")[0]["user_version"]
        if version != SCHEMA_VERSION:
            raise RecordError(other_format(self.path, version))

    def runs(self) -> tuple[Run, ...]:
        """All runs, newest first."""
        return tuple(self._decoded(_run, self._rows("SELECT * FROM runs ORDER BY started DESC, id")))

    def templates(self, run: str) -> tuple[TemplateStats, ...]:
        """A run's templates, the most expensive first."""
        rows = self._rows(f"{_USES} WHERE runs.id = :run", run=run)
        return _dearest_first(self._decoded(template_of, rows))

    def regions(self, run: str) -> tuple[RegionRecord, ...]:
        """A run's regions, in the order of its traces and of their places in these."""
        rows = "SELECT * FROM regions JOIN lines ON lines.id = regions.lines WHERE run = :run ORDER BY number"
        return tuple(self._decoded(region_of, self._rows(rows, run=run)))

    def choices(self, run: str) -> tuple[ChoiceRecord, ...]:
        """A run's residual streams, in the order of its traces."""
        rows = self._rows("SELECT * FROM choices WHERE run = :run ORDER BY number", run=run)
        return tuple(self._decoded(choice_of, rows))

    def compiles(self, run: str) -> tuple[CompileRecord, ...]:
        """The programs that a run compiled or loaded, in the order in which they were ready."""
        rows = self._rows("SELECT * FROM compiles WHERE run = :run ORDER BY number", run=run)
        return tuple(self._decoded(compile_of, rows))

    def find(self, prefix: str) -> tuple[TemplateStats, ...]:
        """The templates whose digest or name starts with ``prefix``, each with the counts of its newest run.

        Where digests or names are equal to ``prefix``, only these. The most expensive come first.
        """
        starts = "instr(templates.digest, :prefix) = 1 OR instr(templates.name, :prefix) = 1"
        newest: dict[str, sqlite3.Row] = {}
        for row in self._rows(f"{_USES} WHERE {starts} ORDER BY runs.started DESC, runs.id", prefix=prefix):
            newest.setdefault(row["digest"], row)
        exact = [row for row in newest.values() if prefix in (row["digest"], row["name"])]
        return _dearest_first(self._decoded(template_of, exact or newest.values()))

    def _rows(self, query: str, **parameters: str) -> list[sqlite3.Row]:
        # Not mode=ro: what a process that died while writing left half done is rolled back by the next to open the
        # file, and that takes a connection which may write. sqlite falls back to reading if the file is protected.
        address = f"{self.path.absolute().as_uri()}?mode=rw"
        try:
            with closing(sqlite3.connect(address, uri=True, timeout=LOCK_SECONDS)) as database:
                database.row_factory = sqlite3.Row
                return database.execute(query, parameters).fetchall()
        except sqlite3.Error as error:
            if "locked" in str(error):
                raise RecordError(f"{self.path} is being written by another process: try again") from error
            raise self._unreadable(error) from error

    def _decoded[T](self, decode: Callable[[sqlite3.Row], T], rows: Iterable[sqlite3.Row]) -> list[T]:
        try:
            return [decode(row) for row in rows]
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> RecordError:
        return RecordError(
            f"{self.path} cannot be read ({error}): check that it may be read; if it is damaged, move it away and the "
            "next run starts a new one"
        )


def other_format(path: Path, version: int) -> str:
    """What to say of a record that another version of fusioncache wrote, or that is not one."""
    return (
        f"{path} has format {version} and this fusioncache reads format {SCHEMA_VERSION}: move it away, or set "
        f"{DIRECTORY_VARIABLE} to another directory"
    )


def _has_content(path: Path) -> bool:
    # The file is empty from when the first run opens it until it commits.
    try:
        return path.stat().st_size > 0
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise RecordError(f"{path} cannot be read ({error.strerror}): check its permissions") from error


def _run(row: sqlite3.Row) -> Run:
    where = (row["id"], row["started"], row["pid"], row["command"])
    return Run(*where, stats_of(row), phases_of(row), row["unrecorded"])


def _dearest_first(templates: Iterable[TemplateStats]) -> tuple[TemplateStats, ...]:
    return tuple(sorted(templates, key=lambda t: (-t.compile_seconds, -t.regions, t.name, t.digest)))
