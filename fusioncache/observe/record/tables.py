"""Writes what a run counted and observed into the tables of the record."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from fusioncache.observe.record.ledger import Observed
from fusioncache.observe.record.observations import ChoiceRecord, CompileRecord, PlacementRecord, RegionRecord
from fusioncache.observe.record.outlines import CutRegions, CutText
from fusioncache.observe.record.schema import Row, encode_choice, encode_compile, encode_placement, encode_use
from fusioncache.observe.record.stats import TemplateStats


def put_row(database: sqlite3.Connection, table: str, row: Row) -> None:
    """Inserts a row, or replaces the one with the same key."""
    names, marks = ", ".join(row), ", ".join(f":{name}" for name in row)
    database.execute(f"INSERT OR REPLACE INTO {table} ({names}) VALUES ({marks})", row)


def find_number(database: sqlite3.Connection, run: str) -> int | None:
    """Returns the number of a run, by its id; None if it is not there."""
    return _first(database, "SELECT number FROM runs WHERE id = ?", run)


class RunTables:
    """The rows of one run, in a transaction.

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
        put_row(self._database, "uses", {"run": self._run, "template": number, **encode_use(template)})

    def has_template(self, template: TemplateStats) -> bool:
        """Tells whether a template has a share in the run."""
        query = "SELECT 1 FROM uses JOIN templates ON id = template WHERE run = ? AND digest = ?"
        return _first(self._database, query, self._run, template.digest) is not None

    def put_observations(self, observed: Observed, traces: Mapping[int, Sequence[RegionRecord]]) -> None:
        """Writes what is new or changed.

        Args:
            observed: it.
            traces: all regions of each trace of which one is new or changed, by the number of the trace.
        """
        for number, regions in traces.items():
            self._put_trace(number, regions)
        self._put_all("choices", observed.get(ChoiceRecord, {}), encode_choice)
        self._put_all("placements", observed.get(PlacementRecord, {}), encode_placement)
        self._put_all("compiles", observed.get(CompileRecord, {}), encode_compile)

    def _put_all(self, table: str, found: Mapping[int, Any], encode: Any) -> None:
        for number, each in found.items():
            put_row(self._database, table, {"run": self._run, "number": number, **encode(each)})

    def _put_trace(self, number: int, regions: Sequence[RegionRecord]) -> None:
        cut = CutRegions.cut(regions)
        before = _first(self._database, "SELECT outline FROM traces WHERE run = ? AND number = ?", self._run, number)
        outline = _find_outline(self._database, cut.shape) or _add_outline(self._database, cut.shape, cut.content)
        templates = json.dumps([self._find_template(digest) or digest for digest in cut.templates])
        row = {"run": self._run, "number": number, "model": regions[0].model, "outline": outline}
        put_row(self._database, "traces", {**row, "templates": templates})
        if before not in (None, outline):
            unused = "id = ? AND id NOT IN (SELECT outline FROM traces UNION SELECT outline FROM templates)"
            self._database.execute(f"DELETE FROM outlines WHERE {unused}", (before,))

    def _find_template(self, digest: str) -> int | None:
        return _first(self._database, "SELECT id FROM templates WHERE digest = ?", digest)

    def _add_template(self, template: TemplateStats) -> int:
        cut = CutText.cut(json.dumps(template.ingredients))
        outline = _find_outline(self._database, cut.shape) or _add_outline(self._database, cut.shape, cut.pack())
        content = self._database.execute("SELECT content FROM outlines WHERE id = ?", (outline,)).fetchone()[0]
        values = (template.digest, template.name, template.ops, outline, cut.list_numbers(content))
        insert = "INSERT INTO templates (digest, name, ops, outline, numbers) VALUES (?, ?, ?, ?, ?)"
        return _insert(self._database, insert, *values)


def _find_outline(database: sqlite3.Connection, shape: str) -> int | None:
    return _first(database, "SELECT id FROM outlines WHERE shape = ?", shape)


def _add_outline(database: sqlite3.Connection, shape: str, content: bytes) -> int:
    return _insert(database, "INSERT INTO outlines (shape, content) VALUES (?, ?)", shape, content)


def _first(database: sqlite3.Connection, query: str, *parameters: Any) -> int | None:
    row = database.execute(query, parameters).fetchone()
    return None if row is None else row[0]


def _insert(database: sqlite3.Connection, statement: str, *values: Any) -> int:
    number = database.execute(statement, values).lastrowid
    assert number is not None
    return number
