"""The file of the record: where it is, its tables, and how values become rows. Lists and mappings are JSON."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fusioncache.ir.strict_json import decode
from fusioncache.process.settings import DIRECTORY, find_directory
from fusioncache.process.sqlite_file import OtherVersion, Schema
from fusioncache.record.observations import (
    ChoiceRecord,
    CompileRecord,
    Lifetime,
    Line,
    Phases,
    PlanCost,
    RegionRecord,
    Source,
)
from fusioncache.record.placements import PlacementRecord, decode_placement, list_placement
from fusioncache.record.stats import Stats, TemplateCounts, TemplateStats

_TABLES = (
    """CREATE TABLE runs (
    id TEXT PRIMARY KEY, started REAL NOT NULL, updated REAL NOT NULL, ended INTEGER NOT NULL, pid INTEGER NOT NULL,
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
    not_captured TEXT NOT NULL,
    saved_seconds REAL NOT NULL, canonicalize_seconds REAL NOT NULL, verified INTEGER NOT NULL,
    verify_compiles INTEGER NOT NULL, verify_compile_seconds REAL NOT NULL,
    phases TEXT NOT NULL, unrecorded INTEGER NOT NULL)""",
    """CREATE TABLE past (
    id TEXT PRIMARY KEY, started REAL NOT NULL, regions INTEGER NOT NULL, hits INTEGER NOT NULL,
    compiles INTEGER NOT NULL, compile_seconds REAL NOT NULL, loads INTEGER NOT NULL, load_seconds REAL NOT NULL,
    saved_seconds REAL NOT NULL)""",
    """CREATE TABLE templates (
    digest TEXT PRIMARY KEY, name TEXT NOT NULL, ops INTEGER NOT NULL, ingredients TEXT NOT NULL)""",
    """CREATE TABLE uses (
    run TEXT NOT NULL, digest TEXT NOT NULL, regions INTEGER NOT NULL, hits INTEGER NOT NULL, arities TEXT NOT NULL,
    compiles INTEGER NOT NULL, compile_seconds REAL NOT NULL, loads INTEGER NOT NULL, load_seconds REAL NOT NULL,
    loaded_compile_seconds REAL NOT NULL, PRIMARY KEY (run, digest))""",
    """CREATE TABLE regions (
    run TEXT NOT NULL, number INTEGER NOT NULL, model TEXT, trace TEXT NOT NULL, trace_number INTEGER NOT NULL,
    position INTEGER NOT NULL, name TEXT NOT NULL, digest TEXT, outcome TEXT NOT NULL, reason TEXT,
    arities TEXT NOT NULL, plan TEXT, module TEXT, layer INTEGER, lines INTEGER NOT NULL, ops INTEGER NOT NULL,
    inputs INTEGER NOT NULL, outputs INTEGER NOT NULL, PRIMARY KEY (run, number))""",
    "CREATE TABLE lines (id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE)",
    """CREATE TABLE choices (
    run TEXT NOT NULL, number INTEGER NOT NULL, model TEXT, trace TEXT NOT NULL, trace_number INTEGER NOT NULL,
    stream TEXT NOT NULL, sums INTEGER NOT NULL, plan TEXT NOT NULL, costs TEXT NOT NULL, PRIMARY KEY (run, number))""",
    """CREATE TABLE placements (
    run TEXT NOT NULL, number INTEGER NOT NULL, model TEXT, trace_number INTEGER NOT NULL, placement TEXT NOT NULL,
    PRIMARY KEY (run, number))""",
    """CREATE TABLE compiles (
    run TEXT NOT NULL, number INTEGER NOT NULL, digest TEXT NOT NULL, loaded INTEGER NOT NULL, started REAL NOT NULL,
    seconds REAL NOT NULL, compile_seconds REAL NOT NULL, PRIMARY KEY (run, number))""",
)
"""One row for each run, each run that was forgotten, each template, each template of a run, and each region, stream,
trace with collectives and executable of a run.

Regions of equal layers come from the same lines, so each is there once, whichever regions and runs they are of.
"""

# What a process wrote stays if it is killed. To outlast a power failure as well, each write would have to wait for the
# disk, which takes fifty times as long, in the middle of a step.
SCHEMA = Schema(13, _TABLES, "PRAGMA synchronous = OFF")
"""Its version is in the name of the file: what another version wrote stays as it is, in a file of its own.

Those before 13 have the values of command lines.
"""

OF_RUNS = ("uses", "regions", "choices", "placements", "compiles")
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


class RecordError(Exception):
    """The record cannot be read or written; the message says what is wrong and what to do."""


def record_path() -> Path:
    """Returns where the record is: in ``FUSIONCACHE_DIR`` if that is set, else in the platform's cache directory."""
    return find_directory() / f"record-{SCHEMA.version}.sqlite"


def make_format_error(path: Path, other: OtherVersion) -> RecordError:
    """Returns what to raise for a record that another version of fusioncache wrote, or that is not one."""
    return RecordError(
        f"{path} has format {other.version} and this fusioncache reads format {SCHEMA.version}: move it away, or set "
        f"{DIRECTORY.name} to another directory"
    )


_MAPPINGS = (
    "bypasses", "own_sizes", "taken_out", "unkept", "programs_refused", "passes_repeated", "programs_interpreted",
    "program_seconds", "not_captured",
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


def encode_template(template: TemplateStats) -> Row:
    """Returns the row of a template, whichever run has it."""
    return {
        "digest": template.digest,
        "name": template.name,
        "ops": template.ops,
        "ingredients": json.dumps(template.ingredients),
    }


def encode_use(template: TemplateStats) -> Row:
    """Returns the row of a template's share in a run, without the run."""
    row = {name: getattr(template, name) for name in _names(TemplateCounts) if name not in ("name", "ops")}
    return {**row, "arities": json.dumps(template.arities)}


def decode_template(row: sqlite3.Row) -> TemplateCounts:
    """Returns a template, from a row of ``uses`` joined with ``templates``."""
    counts = {name: row[name] for name in _names(TemplateCounts)}
    return TemplateCounts(**{**counts, "arities": tuple(map(tuple, json.loads(counts["arities"])))})


def decode_ingredients(row: sqlite3.Row) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Returns a template's digest and the parts of its key, from a row of ``templates``."""
    return row["digest"], tuple((name, text) for name, text in json.loads(row["ingredients"]))


def encode_lines(source: Source) -> str:
    """Returns the lines of a source, as ``lines`` has them."""
    return json.dumps([[line.file, line.number, line.library] for line in source.lines])


def encode_region(region: RegionRecord) -> Row:
    """Returns the row of a region, without its run, number and lines."""
    row = {name: getattr(region, name) for name in _names(RegionRecord) if name != "source"}
    where = {"module": region.source.module, "layer": region.source.layer}
    return {**row, **where, "arities": json.dumps(region.arities)}


def decode_region(row: sqlite3.Row) -> RegionRecord:
    """Returns a region, from a row of ``regions`` joined with ``lines``."""
    values = {name: row[name] for name in _names(RegionRecord) if name != "source"}
    lines = tuple(Line(file, number, library) for file, number, library in json.loads(row["text"]))
    source = Source(row["module"], row["layer"], lines)
    return RegionRecord(**{**values, "arities": tuple(json.loads(values["arities"])), "source": source})


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
    listed = json.dumps(list_placement(placement), separators=(",", ":"))
    return {"model": placement.model, "trace_number": placement.trace_number, "placement": listed}


def decode_placement_row(row: sqlite3.Row) -> PlacementRecord:
    """Returns where the collectives of a trace are, in a row of ``placements``."""
    return decode_placement(decode(row["placement"], "placement"), row["model"], row["trace_number"])


def encode_compile(compile_: CompileRecord) -> Row:
    """Returns the row of an executable, without its run and number."""
    return {name: getattr(compile_, name) for name in _names(CompileRecord)}


def decode_compile(row: sqlite3.Row) -> CompileRecord:
    """Returns an executable in a row of ``compiles``."""
    return CompileRecord(row["digest"], bool(row["loaded"]), row["started"], row["seconds"], row["compile_seconds"])


def decode_lifetime(row: sqlite3.Row) -> Lifetime:
    """Returns the totals of all runs, from the row of ``TOTALS``."""
    return Lifetime(*(0 if value is None else value for value in row))
