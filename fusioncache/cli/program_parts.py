"""The parts of a program of a store that show prints, as text and as data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fusioncache.cli.programs import KeptProgram, join_sources, select_traces
from fusioncache.cli.template_parts import INDENT, NONE, Part, format_block
from fusioncache.cli.terminal import (
    ID_DIGITS,
    Column,
    cut,
    format_pairs,
    format_table,
    highlight_source,
    remove_controls,
    shorten_id,
)
from fusioncache.humanize import escape_controls, format_bytes, format_count, format_seconds, format_time
from fusioncache.process.secrets import blur

if TYPE_CHECKING:
    from fusioncache.accelerators.programs.reads import Read
    from fusioncache.accelerators.programs.text import ProgramText

_LONGEST = 100
_INGREDIENT_COLUMNS = (Column("ingredient"), Column("lines", number=True), Column("digest"))
_READ_COLUMNS = (Column("kind"), Column("name", fold=True), Column("value", fold=True))


def describe_program(program: KeptProgram) -> Part:
    """Returns what is known of a program as a whole."""
    entry, text = program.entry, program.read_text()
    templates = sorted(text.templates())
    traces = (f"{name} {_count_lines(join_sources(trace))}" for name, trace in select_traces(text).items())
    pairs = [
        ("name", escape_controls(entry.name)),
        ("digest", shorten_id(entry.digest)),
        ("id", program.id),
        ("inputs", escape_controls(program.inputs) or NONE),
        ("stored", f"{format_time(entry.created)}, by process {entry.pid} on {escape_controls(entry.host)}"),
        ("last used", format_time(program.used)),
        ("tracing seconds", format_seconds(entry.seconds)),
        ("size", format_bytes(program.size)),
        ("templates", ", ".join(templates) or NONE),
        ("traces", ", ".join(traces)),
    ]
    return Part(format_pairs(pairs), {**program.data(), "templates": templates})


def describe_key(program: KeptProgram) -> Part:
    """Returns what the key is made of, in short; as data with all texts."""
    digests = dict(program.entry.ingredients)
    data = [{"name": name, "digest": digests.get(name), "text": blur(text)} for name, text in program.texts.items()]
    rows = [
        (escape_controls(name), str(_count_lines(text)), digests.get(name, "")[:ID_DIGITS])
        for name, text in program.texts.items()
    ]
    return Part(format_block("key", format_table(_INGREDIENT_COLUMNS, rows, indent=INDENT) if rows else NONE), data)


def describe_reads(reads: Sequence[Read]) -> Part:
    """Returns what the derivation read beside its key, a line for each; as data with all texts."""
    texts = [(read.kind, read.name, blur(read.text)) for read in reads]
    data = [{"kind": kind, "name": name, "text": text} for kind, name, text in texts]
    rows = [(kind, *(cut(escape_controls(text), _LONGEST) for text in both)) for kind, *both in texts]
    heading = format_count(len(reads), "read", "reads")
    return Part(format_block(heading, format_table(_READ_COLUMNS, rows, indent=INDENT) if rows else NONE), data)


def describe_traces(text: ProgramText, names: Sequence[str]) -> Part:
    """Returns the source of the traces with these names; as data all of each."""
    found = {name: trace for name, trace in select_traces(text).items() if name in names}
    data: dict[str, Any] = {name: blur(join_sources(trace)) for name, trace in found.items()}
    sources = [highlight_source(remove_controls(source), "python").strip("\n") for source in data.values()]
    return Part("\n\n\n".join(sources), data)


def _count_lines(text: str) -> int:
    return text.rstrip("\n").count("\n") + 1 if text.strip("\n") else 0
