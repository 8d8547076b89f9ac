"""The record of runs on disk, one sqlite file: where it is, what is in it, and how to read it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

from fusioncache.process import sqlite_file
from fusioncache.process.settings import DIRECTORY, find_directory
from fusioncache.record.listing import DEAREST_FIRST, MATCHES, Listing
from fusioncache.record.naming import run_name
from fusioncache.record.observations import ChoiceRecord, CompileRecord, Lifetime, Phases, RegionRecord
from fusioncache.record.schema import (
    SCHEMA,
    TOTALS,
    choice_of,
    compile_of,
    ingredients_of,
    lifetime_of,
    phases_of,
    region_of,
    stats_of,
    template_of,
)
from fusioncache.record.stats import Stats, TemplateCounts, TemplateStats

LOCK_SECONDS = 10.0
"""How long a process waits while another one writes."""

_COUNTS = """name, digest, ops,
    uses.regions, uses.hits, uses.arities, uses.compiles, uses.compile_seconds, uses.loads, uses.load_seconds,
    uses.loaded_compile_seconds"""
_USES = "uses JOIN templates USING (digest)"
_ALL = Listing()


class RecordError(Exception):
    """The record cannot be read or written; the message says what is wrong and what to do."""


def record_path() -> Path:
    """Where the record is: in ``FUSIONCACHE_DIR`` if that is set, else in the platform's cache directory."""
    return find_directory() / f"record-{SCHEMA.version}.sqlite"


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
        models: classes of the modules, or names of the functions, that it compiled.
        updated: when it was last saved, in seconds since the epoch.
        ended: whether its process came to an end by itself. If not, it goes on, or it was killed.
    """

    id: str
    started: float
    pid: int
    command: str
    stats: Stats
    phases: Phases = field(default_factory=Phases)
    unrecorded: int = 0
    models: tuple[str, ...] = ()
    updated: float = 0.0
    ended: bool = False

    @property
    def why_without_regions(self) -> str:
        """What to say of it if it has no region."""
        return ". ".join(self.stats.bypasses) or "Thunder found nothing to fuse in what it traced"

    @property
    def name(self) -> str:
        """What people call it, such as ``train.py · GPT · 2026-01-31 14:03``."""
        return run_name(self.command, self.models, self.started)


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
            raise RecordError(_no_record(self.path))
        self._rows("SELECT 1")

    def runs(self) -> tuple[Run, ...]:
        """All runs, newest first."""
        return tuple(self._decoded(_run, self._rows("SELECT * FROM runs ORDER BY started DESC, id")))

    def templates(self, run: str, listing: Listing = _ALL) -> tuple[TemplateCounts, ...]:
        """A run's templates: by default all of them, the most expensive first."""
        rows = f"SELECT {_COUNTS} FROM {_USES} WHERE run = :run AND {MATCHES} ORDER BY {listing.order} LIMIT :limit"
        return tuple(self._decoded(template_of, self._rows(rows, run=run, **listing.parameters)))

    def with_ingredients(self, templates: Sequence[TemplateCounts]) -> tuple[TemplateStats, ...]:
        """These templates with what their keys are made of, without those that were forgotten since they were read."""
        rows = "SELECT digest, ingredients FROM templates WHERE digest IN (SELECT value FROM json_each(:digests))"
        digests = json.dumps([template.digest for template in templates])
        found = dict(self._decoded(ingredients_of, self._rows(rows, digests=digests)))
        return tuple(_whole(template, found[template.digest]) for template in templates if template.digest in found)

    def regions(self, run: str, template: str | None = None) -> tuple[RegionRecord, ...]:
        """A run's regions, in the order of its traces and of their places in these.

        Args:
            run: its id.
            template: only those with the template of this digest.
        """
        wanted = "run = :run AND (:template IS NULL OR digest = :template)"
        rows = f"SELECT * FROM regions JOIN lines ON lines.id = regions.lines WHERE {wanted} ORDER BY number"
        return tuple(self._decoded(region_of, self._rows(rows, run=run, template=template)))

    def choices(self, run: str) -> tuple[ChoiceRecord, ...]:
        """A run's residual streams, in the order of its traces."""
        rows = self._rows("SELECT * FROM choices WHERE run = :run ORDER BY number", run=run)
        return tuple(self._decoded(choice_of, rows))

    def compiles(self, run: str) -> tuple[CompileRecord, ...]:
        """The programs that a run compiled or loaded, in the order in which they were ready."""
        rows = self._rows("SELECT * FROM compiles WHERE run = :run ORDER BY number", run=run)
        return tuple(self._decoded(compile_of, rows))

    def lifetime(self) -> Lifetime:
        """What all runs did, since the first of them."""
        (lifetime,) = self._decoded(lifetime_of, self._rows(TOTALS))
        return lifetime

    def find(self, prefix: str) -> tuple[TemplateCounts, ...]:
        """The templates whose digest or name starts with ``prefix``, each with the counts of its newest run.

        Where digests or names are equal to ``prefix``, only these. The most expensive come first.
        """
        newest = self._newest("instr(digest, :prefix) = 1 OR instr(name, :prefix) = 1", prefix=prefix)
        exact = [row for row in newest if prefix in (row["digest"], row["name"])]
        return tuple(self._decoded(template_of, exact or newest))

    def before(self, run: str) -> tuple[TemplateCounts, ...]:
        """The templates of the runs that started before this one, each with the counts of the newest of these."""
        earlier = "runs.started < (SELECT started FROM runs WHERE id = :run)"
        return tuple(self._decoded(template_of, self._newest(earlier, run=run)))

    def _newest(self, wanted: str, **parameters: str) -> list[sqlite3.Row]:
        """The templates of such runs or names, each with its newest run among these, the most expensive first."""
        age = "row_number() OVER (PARTITION BY digest ORDER BY runs.started DESC, runs.id) AS age"
        ranked = f"SELECT {_COUNTS}, {age} FROM {_USES} JOIN runs ON runs.id = uses.run WHERE {wanted}"
        return self._rows(f"SELECT * FROM ({ranked}) WHERE age = 1 ORDER BY {DEAREST_FIRST}", **parameters)

    def _rows(self, query: str, **parameters: str | int | None) -> list[sqlite3.Row]:
        try:
            with sqlite_file.read(self.path, LOCK_SECONDS) as database:
                SCHEMA.require(database)
                return database.execute(query, parameters).fetchall()
        except sqlite_file.OtherVersion as other:
            raise other_format(self.path, other) from other
        except sqlite3.Error as error:
            if sqlite_file.is_locked(error):
                raise RecordError(f"{self.path} is being written by another process: try again") from error
            raise self._unreadable(error) from error
        except UnicodeEncodeError:
            return []  # what was typed is no valid text, so nothing in the record has it

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


def other_format(path: Path, other: sqlite_file.OtherVersion) -> RecordError:
    """Returns what to raise for a record that another version of fusioncache wrote, or that is not one."""
    return RecordError(
        f"{path} has format {other.version} and this fusioncache reads format {SCHEMA.version}: move it away, or set "
        f"{DIRECTORY.name} to another directory"
    )


def _no_record(path: Path) -> str:
    advice = f"run a model with fusioncache first, or set {DIRECTORY.name} to the directory of an earlier run"
    others = sorted(other.name for other in path.parent.glob("record-*.sqlite") if other != path)
    found = f" ({', '.join(others)} is there, of another version of fusioncache)" if others else ""
    return f"there is no record at {path}{found}: {advice}"


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
    models = tuple(json.loads(row["models"]))
    return Run(*where, stats_of(row), phases_of(row), row["unrecorded"], models, row["updated"], bool(row["ended"]))


def _whole(template: TemplateCounts, ingredients: tuple[tuple[str, str], ...]) -> TemplateStats:
    counts = {count.name: getattr(template, count.name) for count in fields(template)}
    return TemplateStats(**counts, ingredients=ingredients)
