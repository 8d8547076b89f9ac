"""The file of the record: where it is, its tables, and how values become rows. Lists and mappings are JSON."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fusioncache.ir.strict_json import decode
from fusioncache.observe.record.observations import (
    ChoiceRecord,
    CompileRecord,
    Lifetime,
    Phases,
    PlanCost,
    RegionRecord,
)
from fusioncache.observe.record.outlines import fill_regions, fill_text, unpack
from fusioncache.observe.record.placements import PlacementRecord, decode_placement, list_placement
from fusioncache.observe.record.stats import Stats, TemplateCounts, TemplateStats
from fusioncache.process.files import Schema
from fusioncache.process.settings import DIRECTORY, find_directory

_TABLES = (
    """CREATE TABLE runs (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE,
    started REAL NOT NULL, updated REAL NOT NULL, ended INTEGER NOT NULL, pid INTEGER NOT NULL,
    command TEXT NOT NULL, models TEXT NOT NULL,
    regions INTEGER NOT NULL, templates INTEGER NOT NULL, hits INTEGER NOT NULL, misses INTEGER NOT NULL,
    bypasses TEXT NOT NULL, compiles INTEGER NOT NULL, compile_seconds REAL NOT NULL, loads INTEGER NOT NULL,
    load_seconds REAL NOT NULL, loaded_compile_seconds REAL NOT NULL, handed_over INTEGER NOT NULL,
    helped INTEGER NOT NULL, generalizations INTEGER NOT NULL, general_hits INTEGER NOT NULL,
    general_saved_seconds REAL NOT NULL,
    reused_sizes INTEGER NOT NULL, own_sizes TEXT NOT NULL, taken_out TEXT NOT NULL, unkept TEXT NOT NULL,
    programs_loaded INTEGER NOT NULL,
    loaded_program_seconds REAL NOT NULL, programs_made INTEGER NOT NULL, programs_refused TEXT NOT NULL,
    programs_replayed INTEGER NOT NULL, programs_filled INTEGER NOT NULL, passes_repeated TEXT NOT NULL,
    programs_interpreted TEXT NOT NULL,
    program_seconds TEXT NOT NULL, captures INTEGER NOT NULL, graph_replays INTEGER NOT NULL,
    gradients_copied INTEGER NOT NULL,
    not_captured TEXT NOT NULL, start_seconds TEXT NOT NULL,
    saved_seconds REAL NOT NULL, canonicalize_seconds REAL NOT NULL, verified INTEGER NOT NULL,
    verify_compiles INTEGER NOT NULL, verify_compile_seconds REAL NOT NULL,
    phases TEXT NOT NULL, unrecorded INTEGER NOT NULL)""",
    """CREATE TABLE past (
    id TEXT PRIMARY KEY, started REAL NOT NULL, regions INTEGER NOT NULL, hits INTEGER NOT NULL,
    compiles INTEGER NOT NULL, compile_seconds REAL NOT NULL, loads INTEGER NOT NULL, load_seconds REAL NOT NULL,
    saved_seconds REAL NOT NULL)""",
    "CREATE TABLE outlines (id INTEGER PRIMARY KEY, shape TEXT NOT NULL UNIQUE, content BLOB NOT NULL)",
    """CREATE TABLE templates (
    id INTEGER PRIMARY KEY, digest TEXT NOT NULL UNIQUE, name TEXT NOT NULL, ops INTEGER NOT NULL,
    outline INTEGER NOT NULL, numbers TEXT NOT NULL)""",
    """CREATE TABLE uses (
    run INTEGER NOT NULL, template INTEGER NOT NULL, regions INTEGER NOT NULL, hits INTEGER NOT NULL,
    arities TEXT NOT NULL, compiles INTEGER NOT NULL, compile_seconds REAL NOT NULL, loads INTEGER NOT NULL,
    load_seconds REAL NOT NULL, loaded_compile_seconds REAL NOT NULL, PRIMARY KEY (run, template)) WITHOUT ROWID""",
    """CREATE TABLE traces (
    run INTEGER NOT NULL, number INTEGER NOT NULL, model TEXT, outline INTEGER NOT NULL, templates TEXT NOT NULL,
    PRIMARY KEY (run, number)) WITHOUT ROWID""",
    """CREATE TABLE choices (
    run INTEGER NOT NULL, number INTEGER NOT NULL, model TEXT, trace TEXT NOT NULL, trace_number INTEGER NOT NULL,
    stream TEXT NOT NULL, sums INTEGER NOT NULL, plan TEXT NOT NULL, costs TEXT NOT NULL,
    PRIMARY KEY (run, number)) WITHOUT ROWID""",
    """CREATE TABLE placements (
    run INTEGER NOT NULL, number INTEGER NOT NULL, model TEXT, trace_number INTEGER NOT NULL, placement BLOB NOT NULL,
    PRIMARY KEY (run, number))""",
    """CREATE TABLE compiles (
    run INTEGER NOT NULL, number INTEGER NOT NULL, digest TEXT NOT NULL, loaded INTEGER NOT NULL, started REAL NOT NULL,
    seconds REAL NOT NULL, compile_seconds REAL NOT NULL, PRIMARY KEY (run, number)) WITHOUT ROWID""",
)
"""One row for each run, each run that was forgotten, each template, each template of a run, each forward trace of a run
with its backward trace, and each stream, trace with collectives and executable of a run.

What is the same at each length of a model is there once, as an outline: the text of templates but for their numbers,
and the regions of a trace but for their templates (``outlines.py``).
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
SCHEMA = Schema(15, _TABLES, "PRAGMA synchronous = OFF", _make_error, is_vacuumed=True)
"""Its version is in the name of the file: what another version wrote stays as it is, in a file of its own.

Those before 13 have the values of command lines.
"""

OF_RUNS = ("uses", "traces", "choices", "placements", "compiles")
"""The tables whose rows go with their run."""

IN_PAST = "id, started, regions, hits, compiles, compile_seconds, loads, load_seconds, saved_seconds"
"""What is left of a run that was forgotten: the columns of ``past``, which ``runs`` has as well."""

TOTALS = f"""
SELECT min(started), count(*), sum(regions), sum(hits), sum(compiles), sum(compile_seconds), sum(loads),
    sum(load_seconds), sum(saved_seconds) FROM (SELECT {IN_PAST} FROM runs UNION ALL SELECT {IN_PAST} FROM past)
"""
"""The fields of a ``Lifetime``, in SQL."""

LOCK_SECONDS = 10.0
"""How long a process waits while another one writes."""

Row = Mapping[str, Any]


def record_path() -> Path:
    """Returns where the record is: in ``FUSIONCACHE_DIR`` if that is set, else in the platform's cache directory."""
    return find_directory() / f"record-{SCHEMA.version}.sqlite"


_MAPPINGS = (
    "bypasses", "own_sizes", "taken_out", "unkept", "programs_refused", "passes_repeated", "programs_interpreted",
    "program_seconds", "not_captured", "start_seconds",
)  # fmt: skip


def _names(values: type) -> Iterator[str]:
    """Yields the names of a dataclass's fields, which are the columns of its rows."""
    return (field.name for field in dataclasses.fields(values))


def encode_stats(stats: Stats) -> Row:
    """Returns the row of a run's counts."""
    row = {name: getattr(stats, name) for name in _names(Stats)}
    return {**row, **{name: json.dumps(dict(row[name])) for name in _MAPPINGS}}


def decode_stats(row: sqlite3.Row) -> Stats:
    """Returns the counts in a row of ``runs``."""
    counts = {name: row[name] for name in _names(Stats)}
    return Stats(**{**counts, **{name: MappingProxyType(dict(json.loads(counts[name]))) for name in _MAPPINGS}})


def decode_phases(row: sqlite3.Row) -> Phases:
    """Returns the phases in a row of ``runs``."""
    return Phases(**json.loads(row["phases"]))


def encode_use(template: TemplateStats) -> Row:
    """Returns the row of a template's share in a run, without the run and the template."""
    row = {name: getattr(template, name) for name in _names(TemplateCounts) if name not in ("name", "ops", "digest")}
    return {**row, "arities": json.dumps(template.arities)}


def decode_template(row: sqlite3.Row) -> TemplateCounts:
    """Returns a template, from a row of ``uses`` joined with ``templates``."""
    counts = {name: row[name] for name in _names(TemplateCounts)}
    return TemplateCounts(**{**counts, "arities": tuple(map(tuple, json.loads(counts["arities"])))})


def decode_ingredients(row: sqlite3.Row) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Returns a template's digest and the parts of its key, from a row of ``templates`` joined with ``outlines``."""
    ingredients = json.loads(fill_text(row["content"], row["numbers"]))
    return row["digest"], tuple((name, text) for name, text in ingredients)


def decode_trace(row: sqlite3.Row) -> tuple[RegionRecord, ...]:
    """Returns the regions in a row of ``traces`` that has its outline, and the ``digests`` of its templates by id."""
    digests = json.loads(row["digests"])
    templates = [digests[str(each)] if isinstance(each, int) else each for each in json.loads(row["templates"])]
    return fill_regions(row["content"], templates, row["model"], row["number"])


def encode_choice(choice: ChoiceRecord) -> Row:
    """Returns the row of a stream, without its run and number."""
    return {
        "model": choice.model,
        "trace": choice.trace,
        "trace_number": choice.trace_number,
        "stream": choice.stream,
        "sums": choice.sums,
        "plan": choice.plan,
        "costs": json.dumps([[cost.plan, cost.moved, cost.alive, cost.kernels] for cost in choice.costs]),
    }


def decode_choice(row: sqlite3.Row) -> ChoiceRecord:
    """Returns a stream in a row of ``choices``."""
    costs = tuple(PlanCost(plan, moved, alive, kernels) for plan, moved, alive, kernels in json.loads(row["costs"]))
    return ChoiceRecord(row["model"], row["trace"], row["trace_number"], row["stream"], row["sums"], row["plan"], costs)


def encode_placement(placement: PlacementRecord) -> Row:
    """Returns the row of where the collectives of a trace are, without its run and number."""
    listed = zlib.compress(json.dumps(list_placement(placement), separators=(",", ":")).encode())
    return {"model": placement.model, "trace_number": placement.trace_number, "placement": listed}


def decode_placement_row(row: sqlite3.Row) -> PlacementRecord:
    """Returns where the collectives of a trace are, in a row of ``placements``."""
    listed = unpack(row["placement"])
    return decode_placement(decode(listed, "placement"), row["model"], row["trace_number"])


def encode_compile(compile_: CompileRecord) -> Row:
    """Returns the row of an executable, without its run and number."""
    return {name: getattr(compile_, name) for name in _names(CompileRecord)}


def decode_compile(row: sqlite3.Row) -> CompileRecord:
    """Returns an executable in a row of ``compiles``."""
    return CompileRecord(row["digest"], bool(row["loaded"]), row["started"], row["seconds"], row["compile_seconds"])


def decode_lifetime(row: sqlite3.Row) -> Lifetime:
    """Returns the totals of all runs, from the row of ``TOTALS``."""
    return Lifetime(*(0 if value is None else value for value in row))
