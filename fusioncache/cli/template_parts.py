"""The parts of a template that show prints, as text and as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from fusioncache.cli.kept_executables import KeptExecutable
from fusioncache.cli.lookup import format_line
from fusioncache.cli.terminal import ID_DIGITS, Column, count_columns, format_pairs, format_table, shorten_id, wrap
from fusioncache.humanize import (
    escape_controls,
    format_arities,
    format_bytes,
    format_ranges,
    format_seconds,
    format_time,
)
from fusioncache.ir import Graph, NumberType
from fusioncache.ir.ingredients import GRAPH
from fusioncache.ir.ops import RESIDUAL
from fusioncache.observe.explain.difference import Varying
from fusioncache.observe.record.observations import RegionRecord
from fusioncache.observe.record.stats import TemplateStats
from fusioncache.template.text import number_literals, read_graph

NONE = "(none)"
INDENT = 2
"""The indent of the lines below a heading."""

_OF_OPS = tuple(name for name in GRAPH if name not in ("format", "inputs"))

_REGION_COLUMNS = (
    Column("model", fold=True, rank=5),
    Column("trace"),
    Column("number", number=True, rank=4),
    Column("region", rank=3),
    Column("outcome", fold=True),
    Column("terms", rank=1),
    Column("plan", rank=2),
    Column("module", fold=True),
    Column("line", fold=True),
)


@dataclass(frozen=True, slots=True)
class Part:
    """One part.

    Attributes:
        text: for people, under its heading.
        data: as JSON.
    """

    text: str
    data: Any


def format_template_counts(template: TemplateStats, not_kept: Mapping[str, int]) -> str:
    """Returns the template's names and its counts, and why, and how many of, its executables cannot be kept."""
    pairs = [
        ("name", template.name),
        ("digest", shorten_id(template.digest)),
        ("regions", str(template.regions)),
        ("hits", str(template.hits)),
        ("arities", format_arities(template.arities)),
        ("compiles", str(template.compiles)),
        ("compile seconds", format_seconds(template.compile_seconds)),
        ("loads", str(template.loads)),
        ("load seconds", format_seconds(template.load_seconds)),
        *(("not stored", f"{number}: {escape_controls(reason)}") for reason, number in sorted(not_kept.items())),
    ]
    return format_pairs(pairs)


def format_executable(executable: KeptExecutable) -> str:
    """Returns what an executable was compiled for, by whom, and what it takes."""
    entry, refused = executable.entry, executable.refused
    pairs = [
        ("name", escape_controls(executable.name)),
        ("digest", shorten_id(entry.digest)),
        ("backend", entry.backend),
        ("stored", f"{format_time(entry.created)}, by process {entry.pid} on {escape_controls(entry.host)}"),
        ("last used", format_time(executable.used)),
        ("compile seconds", format_seconds(entry.seconds)),
        ("size", format_bytes(executable.size)),
        *([("not stored", escape_controls(refused))] if refused is not None else []),
    ]
    return format_pairs(pairs)


def describe_ingredients(template: TemplateStats, names: Sequence[str] | None = None) -> Part:
    """Returns what the key is made of: all of it, or the parts with these names, each with its digest."""
    found = [(name, text) for name, text in template.ingredients if names is None or name in names]
    data = [{"name": name, "digest": sha256(text.encode()).hexdigest(), "text": text} for name, text in found]
    return Part("\n\n".join(_ingredient_text(**part) for part in data), data)


def describe_inputs(template: TemplateStats) -> Part:
    """Returns the type of each input that is no residual term."""
    return describe_ingredients(template, ("inputs",))


def describe_ops(template: TemplateStats) -> Part:
    """Returns the ops, with the constants and attributes that they mention, and what leaves."""
    return describe_ingredients(template, _OF_OPS)


def describe_parameters(template: TemplateStats, varying: Sequence[Varying]) -> Part:
    """Returns what differs between regions that share the template: residual terms, sizes, and numbers.

    Args:
        template: it.
        varying: what differs between it and those with which it may share code for any sizes.
    """
    try:
        graph = read_graph(dict(template.ingredients))
    except ValueError:
        graph = Graph((), (), ())  # its ingredients are shown as they are
    sums = [f"%{first}" for op, first in graph.results() if op.name == RESIDUAL]
    seen = [sorted(set(chain)) for chain in zip(*template.arities, strict=False)]
    sizes = [f"%{value}" for value in range(len(graph.inputs), graph.first_result)]
    numbers = [f"%{value}" for value, type_ in enumerate(graph.inputs) if isinstance(type_, NumberType)]
    texts = [
        *(f"residual terms of {value}: {format_ranges(terms)}" for value, terms in zip(sums, seen, strict=False)),
        *(f"size {value}" for value in sizes),
        *(f"number {value}" for value in numbers),
        *(f"other templates are the same but for {each.text()}" for each in varying),
    ]
    terms = [{"value": value, "seen": terms} for value, terms in zip(sums, seen, strict=False)]
    return Part(
        _block("parameters", texts),
        {"residual_terms": terms, "sizes": sizes, "numbers": numbers, "varying": [each.data() for each in varying]},
    )


def describe_regions(records: Sequence[RegionRecord]) -> Part:
    """Returns every region that has the template."""
    data = [encode_region(record) for record in records]
    if not records:
        return Part(_block("regions", []), data)
    table = format_table(_REGION_COLUMNS, [_row(record) for record in records], indent=INDENT)
    return Part(format_block("regions", table), data)


def encode_region(region: RegionRecord) -> dict[str, Any]:
    """Returns one region: where it is, what became of it, and where it comes from."""
    source = region.source
    return {
        "model": region.model,
        "trace": region.trace,
        "trace_number": region.trace_number,
        "position": region.position,
        "name": region.name,
        "outcome": region.outcome,
        "reason": region.reason,
        "arities": region.arities,
        "plan": region.plan,
        "module": source.module,
        "layer": source.layer,
        "lines": [{"file": line.file, "line": line.number, "library": line.library} for line in source.lines],
    }


def _row(region: RegionRecord) -> tuple[str, ...]:
    lines = region.source.lines
    line = next((line for line in lines if not line.library), lines[0] if lines else None)
    outcome = region.outcome if region.reason is None else f"{region.outcome} ({region.reason})"
    cells = (
        region.model,
        region.trace,
        str(region.trace_number),
        region.name,
        outcome,
        " / ".join(map(str, region.arities)),
        region.plan,
        region.source.module,
        format_line(line) if line else None,
    )
    return tuple(escape_controls(cell) if cell else "-" for cell in cells)


def _ingredient_text(name: str, digest: str, text: str) -> str:
    return _block(f"{name}  {digest[:ID_DIGITS]}", [escape_controls(line) for line in number_literals(name, text)])


def _block(heading: str, lines: Sequence[str]) -> str:
    width = count_columns()
    return format_block(heading, "\n".join(wrap(line, width and width - INDENT) for line in lines or [NONE]))


def format_block(heading: str, text: str) -> str:
    """Returns a text, indented below a heading."""
    return "\n".join([heading, *(f"{' ' * INDENT}{line}" for line in text.split("\n"))])
