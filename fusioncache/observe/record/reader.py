"""Reads the record of runs on disk, and removes it."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from fusioncache.observe.record.limits import make_room, measure
from fusioncache.observe.record.observations import ChoiceRecord, CompileRecord, Lifetime, RegionRecord
from fusioncache.observe.record.outlines import fill_text
from fusioncache.observe.record.placements import PlacementRecord
from fusioncache.observe.record.runs import Run
from fusioncache.observe.record.schema import (
    LOCK_SECONDS,
    SCHEMA,
    TOTALS,
    RecordError,
    decode_choice,
    decode_compile,
    decode_ingredients,
    decode_lifetime,
    decode_phases,
    decode_placement_row,
    decode_stats,
    decode_template,
    decode_trace,
    record_path,
)
from fusioncache.observe.record.stats import TemplateCounts, TemplateStats
from fusioncache.process import files
from fusioncache.process.settings import DIRECTORY

Sort = Literal["seconds", "regions", "hits", "name", "size"]

DEAREST_FIRST = "compile_seconds DESC, regions DESC, name, digest"

_FIRST: Mapping[Sort, str] = {
    "seconds": "compile_seconds DESC",
    "regions": "regions DESC",
    "hits": "hits DESC",
    "name": "name",
    "size": "ops DESC",
}

MATCHES = """(:name IS NULL OR instr(templates.name, :name))
    AND (:backend IS NULL OR EXISTS (SELECT 1 FROM json_each(fill_text(content, numbers))
        WHERE json_extract(value, '$[0]') = 'backend' AND json_extract(value, '$[1]') = :backend))
    AND (:text IS NULL OR EXISTS (SELECT 1 FROM json_each(fill_text(content, numbers))
        WHERE instr(json_extract(value, '$[1]'), :text)))"""
"""Of a row of ``templates`` with its outline, in SQL: whether it is one of a listing's."""


@dataclass(frozen=True, slots=True)
class Listing:
    """What is asked of the templates of a run. What is None does not matter.

    Attributes:
        name: they have this in their name.
        backend: they are of this backend.
        text: they have this in an ingredient of their key.
        sort: what comes first: the largest number, or the first name. Among equals it is the most expensive.
        limit: how many there are at most.
    """

    name: str | None = None
    backend: str | None = None
    text: str | None = None
    sort: Sort = "seconds"
    limit: int | None = None

    @property
    def order(self) -> str:
        """The columns to sort by, in SQL."""
        return f"{_FIRST[self.sort]}, {DEAREST_FIRST}"

    @property
    def parameters(self) -> dict[str, str | int | None]:
        """What ``MATCHES`` and a limit are given."""
        limit = -1 if self.limit is None else self.limit
        return {"name": self.name, "backend": self.backend, "text": self.text, "limit": limit}


_COUNTS = """name, digest, ops,
    uses.regions, uses.hits, uses.arities, uses.compiles, uses.compile_seconds, uses.loads, uses.load_seconds,
    uses.loaded_compile_seconds"""
_USES = "uses JOIN templates ON templates.id = uses.template"
_OUTLINES = "JOIN outlines ON outlines.id = outline"
_OF_RUN = "run = (SELECT number FROM runs WHERE id = :run)"
_ALL = Listing()


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
        return tuple(self._decode(_decode_run, self._rows("SELECT * FROM runs ORDER BY started DESC, id")))

    def templates(self, run: str, listing: Listing = _ALL) -> tuple[TemplateCounts, ...]:
        """Returns a run's templates: by default all of them, the most expensive first."""
        wanted = f"{_OF_RUN} AND {MATCHES} ORDER BY {listing.order} LIMIT :limit"
        rows = f"SELECT {_COUNTS} FROM {_USES} {_OUTLINES} WHERE {wanted}"
        return tuple(self._decode(decode_template, self._rows(rows, run=run, **listing.parameters)))

    def add_ingredients(self, templates: Sequence[TemplateCounts]) -> tuple[TemplateStats, ...]:
        """Returns these templates with what their keys are made of, without those that were forgotten since."""
        wanted = "templates.digest IN (SELECT value FROM json_each(:digests))"
        rows = f"SELECT templates.digest, content, numbers FROM templates {_OUTLINES} WHERE {wanted}"
        digests = json.dumps([template.digest for template in templates])
        found = dict(self._decode(decode_ingredients, self._rows(rows, digests=digests)))
        return tuple(
            _add_ingredients(template, found[template.digest]) for template in templates if template.digest in found
        )

    def regions(self, run: str, template: str | None = None) -> tuple[RegionRecord, ...]:
        """Returns a run's regions, in the order of its traces and of their positions in these.

        Args:
            run: its id.
            template: only those with the template of this digest.
        """
        has_it = """:template IS NULL OR EXISTS (SELECT 1 FROM json_each(traces.templates)
            WHERE value = :template OR value = (SELECT id FROM templates WHERE digest = :template))"""
        digests = """SELECT json_group_object(id, digest) FROM templates
            WHERE id IN (SELECT value FROM json_each(traces.templates))"""
        listed = f"SELECT number, model, content, traces.templates, ({digests}) AS digests FROM traces {_OUTLINES}"
        rows = f"{listed} WHERE {_OF_RUN} AND ({has_it}) ORDER BY number"
        traces = self._decode(decode_trace, self._rows(rows, run=run, template=template))
        regions = (region for trace in traces for region in trace)
        return tuple(region for region in regions if template in (None, region.digest))

    def choices(self, run: str) -> tuple[ChoiceRecord, ...]:
        """Returns a run's residual streams, in the order of its traces."""
        rows = self._rows(f"SELECT * FROM choices WHERE {_OF_RUN} ORDER BY number", run=run)
        return tuple(self._decode(decode_choice, rows))

    def placements(self, run: str) -> tuple[PlacementRecord, ...]:
        """Returns where the collectives of a run's traces are, in the order of these."""
        rows = self._rows(f"SELECT * FROM placements WHERE {_OF_RUN} ORDER BY number", run=run)
        return tuple(self._decode(decode_placement_row, rows))

    def compiles(self, run: str) -> tuple[CompileRecord, ...]:
        """Returns the executables that a run compiled or loaded, in the order in which they were ready."""
        rows = self._rows(f"SELECT * FROM compiles WHERE {_OF_RUN} ORDER BY number", run=run)
        return tuple(self._decode(decode_compile, rows))

    def lifetime(self) -> Lifetime:
        """Returns what all runs did, since the first of them."""
        (lifetime,) = self._decode(decode_lifetime, self._rows(TOTALS))
        return lifetime

    def find(self, prefix: str) -> tuple[TemplateCounts, ...]:
        """Returns the templates whose digest or name starts with ``prefix``, each with the counts of its newest run.

        Where digests or names are equal to ``prefix``, only these. The most expensive come first.
        """
        newest = self._newest("instr(digest, :prefix) = 1 OR instr(name, :prefix) = 1", prefix=prefix)
        exact = [row for row in newest if prefix in (row["digest"], row["name"])]
        return tuple(self._decode(decode_template, exact or newest))

    def before(self, run: str) -> tuple[TemplateCounts, ...]:
        """Returns the templates of earlier runs than this one, each with the counts of the newest of these."""
        earlier = "runs.started < (SELECT started FROM runs WHERE id = :run)"
        return tuple(self._decode(decode_template, self._newest(earlier, run=run)))

    def _newest(self, wanted: str, **parameters: str) -> list[sqlite3.Row]:
        """Returns the templates of such runs or names, each with its newest run, the most expensive first."""
        age = "row_number() OVER (PARTITION BY digest ORDER BY runs.started DESC, runs.id) AS age"
        ranked = f"SELECT {_COUNTS}, {age} FROM {_USES} JOIN runs ON runs.number = uses.run WHERE {wanted}"
        return self._rows(f"SELECT * FROM ({ranked}) WHERE age = 1 ORDER BY {DEAREST_FIRST}", **parameters)

    def _rows(self, query: str, **parameters: str | int | None) -> list[sqlite3.Row]:
        try:
            with SCHEMA.open_to_read(self.path, LOCK_SECONDS) as database:
                database.create_function("fill_text", 2, fill_text, deterministic=True)
                return database.execute(query, parameters).fetchall()
        except sqlite3.Error as error:
            if files.is_locked(error):
                raise RecordError(f"{self.path} is being written by another process: try again") from error
            raise self._unreadable(error) from error
        except UnicodeEncodeError:
            return []  # what was typed is no valid text, so nothing in the record has it

    def _decode[T](self, decode: Callable[[sqlite3.Row], T], rows: Iterable[sqlite3.Row]) -> list[T]:
        try:
            return [decode(row) for row in rows]
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


def _decode_run(row: sqlite3.Row) -> Run:
    where = (row["id"], row["started"], row["pid"], row["command"])
    models = tuple(json.loads(row["models"]))
    return Run(
        *where, decode_stats(row), decode_phases(row), row["unrecorded"], models, row["updated"], bool(row["ended"])
    )


def _add_ingredients(template: TemplateCounts, ingredients: tuple[tuple[str, str], ...]) -> TemplateStats:
    counts = {count.name: getattr(template, count.name) for count in fields(template)}
    return TemplateStats(**counts, ingredients=ingredients)


def forget(path: Path) -> bool:
    """Removes a record while nobody writes it. A process that goes on writes its own run again.

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
