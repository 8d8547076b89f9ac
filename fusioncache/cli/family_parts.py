"""The parts of a family of a store that show prints, as text and as data."""

from __future__ import annotations

from fusioncache.cli.families import KeptFamily, Outline, ProgramSizes, format_lengths
from fusioncache.cli.template_parts import INDENT, NONE, Part, format_block
from fusioncache.cli.terminal import Column, count_columns, format_pairs, format_table, shorten_id, wrap
from fusioncache.humanize import escape_controls, format_bytes, format_count, format_time


def describe_family(family: KeptFamily) -> Part:
    """Returns what is known of a family as a whole."""
    entry = family.entry
    pairs = [
        ("name", escape_controls(entry.name)),
        ("digest", shorten_id(entry.digest)),
        ("id", family.id),
        ("stored", f"{format_time(entry.created)}, by process {entry.pid} on {escape_controls(entry.host)}"),
        ("last used", format_time(family.used)),
        ("size", format_bytes(family.size)),
    ]
    return Part(format_pairs(pairs), family.data())


def describe_sizes(outline: Outline) -> Part:
    """Returns the sizes of the arguments of each program that a family is made of."""
    programs = outline.programs
    places = programs[0] if programs else ()
    rows = [(_name_place(place), format_lengths([sizes[place] for sizes in programs])) for place in places]
    heading = format_count(len(programs), "program", "programs")
    table = (
        format_table((Column("argument", fold=True), Column("sizes", fold=True)), rows, indent=INDENT) if rows else NONE
    )
    return Part(format_block(heading, table), [_encode_sizes(sizes) for sizes in programs])


def describe_guards(outline: Outline) -> Part:
    """Returns what has to come out the same at a further length, so that a program is filled in there."""
    width = count_columns()
    lines = [wrap(escape_controls(guard), width and width - INDENT) for guard in outline.guards]
    heading = format_count(len(lines), "guard", "guards")
    return Part(format_block(heading, "\n".join(lines) or NONE), list(outline.guards))


def _name_place(place: int | str) -> str:
    return f"args[{place}]" if isinstance(place, int) else escape_controls(place)


def _encode_sizes(sizes: ProgramSizes) -> dict[str, list[int]]:
    return {_name_place(place): list(each) for place, each in sizes.items()}
