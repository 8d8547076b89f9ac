"""The file of the record: where it is, its tables, the rows of a run, and how large and how old it may get.

What a run counted and observed is in ``records``: a row for each template, forward trace with its backward trace,
residual stream, placement of collectives and executable, as JSON by the types of its fields (``ir/codec.py``). Texts of
templates and regions of traces are compressed. The text of a template is there once for all runs.
"""

from __future__ import annotations

import json
import sqlite3
import time
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from fusioncache.observe.record.kept_regions import encode_record, pack_trace
from fusioncache.observe.record.ledger import Observed
from fusioncache.observe.record.observations import Lifetime, RegionRecord, Run
from fusioncache.observe.record.stats import TemplateStats
from fusioncache.process.files import Schema
from fusioncache.process.settings import DIRECTORY, find_directory

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
    """Inserts a row, or replaces the one with the same key."""
    names, marks = ", ".join(row), ", ".join(f":{name}" for name in row)
    database.execute(f"INSERT OR REPLACE INTO {table} ({names}) VALUES ({marks})", row)


def find_run(database: sqlite3.Connection, run: str) -> int | None:
    """Returns the number of a run that is not forgotten, by its id; None if it is not there."""
    return _first(database, "SELECT number FROM runs WHERE id = ? AND content IS NOT NULL", run)


def put_run(database: sqlite3.Connection, run: Run) -> int:
    """Writes a run. Returns its number."""
    totals = {name: getattr(run.stats, name) for name in TOTALS}
    row = {"id": run.id, "started": run.started, "updated": run.updated, **totals, "content": encode_record(run)}
    number = _first(database, "SELECT number FROM runs WHERE id = ?", run.id)
    put_row(database, "runs", row if number is None else {"number": number, **row})
    found = find_run(database, run.id)
    assert found is not None
    return found


class RunRecords:
    """The records of one run, in a transaction.

    Args:
        database: it.
        run: the number of the run.
    """

    def __init__(self, database: sqlite3.Connection, run: int):
        self._database = database
        self._run = run

    def put_template(self, template: TemplateStats) -> None:
        """Writes a template's share in the run, and the template."""
        number = self._find_template(template.digest) or self._add_template(template)
        self._put(USES, number, encode_record(replace(template, name="", digest="", ops=0, ingredients=())))

    def has_template(self, digest: str) -> bool:
        """Returns whether a template has a share in the run."""
        query = f"SELECT 1 FROM records JOIN templates ON id = number WHERE run = ? AND kind = '{USES}' AND digest = ?"
        return _first(self._database, query, self._run, digest) is not None

    def put_observations(self, observed: Observed, regions: Sequence[RegionRecord]) -> None:
        """Writes what is new or changed.

        Args:
            observed: it.
            regions: all regions of the traces of which one is new or changed.
        """
        traces = defaultdict[int, list[RegionRecord]](list)
        for region in regions:
            traces[region.trace_number].append(region)
        for trace, each in traces.items():
            self._put(TRACES, trace, pack_trace(each))
        for kind, records in observed.items():
            for number, record in records.items() if kind is not RegionRecord else ():
                self._put(kind.__name__, number, encode_record(record))

    def _put(self, kind: str, number: int, content: bytes) -> None:
        put_row(self._database, "records", {"run": self._run, "kind": kind, "number": number, "content": content})

    def _find_template(self, digest: str) -> int | None:
        return _first(self._database, "SELECT id FROM templates WHERE digest = ?", digest)

    def _add_template(self, template: TemplateStats) -> int:
        content = zlib.compress(json.dumps(template.ingredients).encode())
        insert = "INSERT INTO templates (digest, name, ops, content) VALUES (?, ?, ?, ?) RETURNING id"
        values = (template.digest, template.name, template.ops, content)
        number: int = self._database.execute(insert, values).fetchone()[0]
        return number


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
