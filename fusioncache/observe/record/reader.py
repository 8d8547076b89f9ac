"""Reads the record of runs on disk, and removes it."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from fusioncache.ir import codec
from fusioncache.observe.record.kept_regions import unpack, unpack_trace
from fusioncache.observe.record.observations import Lifetime, Record, RegionRecord, Run
from fusioncache.observe.record.schema import (
    LOCK_SECONDS,
    SCHEMA,
    TOTALS,
    TRACES,
    USES,
    RecordError,
    make_room,
    measure,
    record_path,
)
from fusioncache.observe.record.stats import TemplateCounts, TemplateStats
from fusioncache.process import files
from fusioncache.process.settings import DIRECTORY

_OF_RUN = "run = (SELECT number FROM runs WHERE id = :run)"
_USES = f"""SELECT digest, name, ops, records.content FROM records JOIN templates ON templates.id = records.number
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

    def templates(self, run: str) -> tuple[TemplateCounts, ...]:
        """Returns a run's templates, the most expensive first."""
        return tuple(
            _most_expensive_first(self._decode(_decode_use, self._rows(f"{_USES} AND runs.id = :run", run=run)))
        )

    def add_ingredients(self, templates: Sequence[TemplateCounts]) -> tuple[TemplateStats, ...]:
        """Returns these templates with what their keys are made of, without those that were forgotten since."""
        wanted = "digest IN (SELECT value FROM json_each(:digests))"
        rows = f"SELECT digest, content FROM templates WHERE {wanted}"
        digests = json.dumps([template.digest for template in templates])
        found = dict(self._decode(_decode_ingredients, self._rows(rows, digests=digests)))
        known = (template for template in templates if template.digest in found)
        return tuple(TemplateStats(**{**asdict(each), "ingredients": found[each.digest]}) for each in known)

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

    def find_templates(self, prefix: str) -> tuple[TemplateCounts, ...]:
        """Returns the templates whose digest or name starts with ``prefix``, each with the counts of its newest run.

        Where digests or names are equal to ``prefix``, only these. The most expensive come first.
        """
        newest = self._newest("(instr(digest, :prefix) = 1 OR instr(name, :prefix) = 1)", prefix=prefix)
        return tuple(each for each in newest if prefix in (each.digest, each.name)) or newest

    def before(self, run: str) -> tuple[TemplateCounts, ...]:
        """Returns the templates of earlier runs than this one, each with the counts of the newest of these."""
        return self._newest("runs.started < (SELECT started FROM runs WHERE id = :run)", run=run)

    def _newest(self, wanted: str, **parameters: str) -> tuple[TemplateCounts, ...]:
        """Returns the templates of such runs or names, each with its newest run, the most expensive first."""
        rows = self._rows(f"{_USES} AND {wanted} ORDER BY runs.started, runs.id DESC", **parameters)
        newest = {row["digest"]: row for row in rows}
        return tuple(_most_expensive_first(self._decode(_decode_use, newest.values())))

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


def _decode_use(row: sqlite3.Row) -> TemplateCounts:
    counts = codec.decode(TemplateCounts, row["content"], "template")
    return replace(counts, name=row["name"], digest=row["digest"], ops=row["ops"])


def _decode_ingredients(row: sqlite3.Row) -> tuple[str, tuple[tuple[str, str], ...]]:
    ingredients = json.loads(unpack(row["content"]))
    return row["digest"], tuple((name, text) for name, text in ingredients)


def _most_expensive_first(templates: Iterable[TemplateCounts]) -> list[TemplateCounts]:
    return sorted(templates, key=lambda each: (-each.compile_seconds, -each.regions, each.name, each.digest))


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
