"""Two programs of a store beside each other: why they are not one, and how their traces differ."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fusioncache.cli.definitions import find_definition
from fusioncache.cli.json_output import print_json
from fusioncache.cli.programs import TRACES, KeptProgram, join_sources, list_programs, select_traces
from fusioncache.cli.terminal import Column, count_columns, format_table, remove_controls, wrap
from fusioncache.humanize import escape_controls
from fusioncache.process.secrets import blur

if TYPE_CHECKING:
    from fusioncache.observe.explain.program_difference import ProgramDifference

_MOST = 20
"""Differences that explain shows; diff shows all of them."""
_COLUMNS = (Column("differs", fold=True), Column("A", fold=True), Column("B", fold=True))
_DEFINED = ("classes", "global", "attribute", "function", "class")
"""The ingredient and the kinds of reads whose names begin with a module's."""
_SAME = "They do not differ."
_HANG = 8
"""By how much lines of a trace are indented that go on."""


def explain_program(program: KeptProgram, other: KeptProgram | None, directory: Path | None, *, as_json: bool) -> None:
    """Prints why a program is not another one: a sentence, then each thing that differs.

    Args:
        program: the one that is meant.
        other: the other one; by default the nearest in the store.
        directory: of the store.
        as_json: whether to print JSON.

    Raises:
        click.ClickException: if there is no other one.
    """
    if other is not None and other.entry.id == program.entry.id and not as_json:
        click.echo(_format_same(program))
        return
    neighbour = other or _find_neighbour(program, directory)
    found = (*_compare_keys(program, neighbour), *_compare_reads(program, neighbour))
    sentence = _write_sentence(found) if found else _compare_equals(program, neighbour)
    line = find_line(found, program) if found else None
    if as_json:
        differences = [difference.data() for difference in found]
        shown = {"sentence": sentence, "line": line, "differences": differences}
        print_json({"a": program.data(), "b": neighbour.data(), **shown})
        return
    lines = [sentence, *([f"  {line}"] if line else [])]
    click.echo("\n".join(wrap(escape_controls(line), count_columns()) for line in lines))
    click.echo(f"\n{_title(program, neighbour)}")
    if found:
        click.echo(f"\n{_table(found[:_MOST])}")
    if len(found) > _MOST:
        more = f"and {len(found) - _MOST} more: 'fusioncache diff {program.id} {neighbour.id}' shows all of them"
        click.echo(wrap(more, count_columns()))


def diff_programs(a: KeptProgram, b: KeptProgram, *, as_json: bool) -> None:
    """Prints all in which two programs differ: the lines of their keys, their reads, and their traces."""
    keys, reads = _compare_keys(a, b), _compare_reads(a, b)
    traces = {
        name: list(map(blur, difflib.unified_diff(one, other, f"A {a.id}", f"B {b.id}", lineterm="")))
        for name, (one, other) in _compare_traces(a, b).items()
    }
    if as_json:
        data = {name: [one.data() for one in found] for name, found in (("key", keys), ("reads", reads))}
        print_json({"a": a.data(), "b": b.data(), **data, "traces": traces})
        return
    blocks = [_title(a, b)]
    blocks += [f"{name}\n{_mark(found)}" for name, found in (("key", keys), ("reads", reads)) if found]
    blocks += ["\n".join([name, *map(_wrap_source, diff)]) for name, diff in traces.items()]
    if a.entry.id == b.entry.id:
        click.echo(_format_same(a))
    else:
        click.echo("\n\n".join(blocks if len(blocks) > 1 else [*blocks, _SAME]))


def _wrap_source(line: str) -> str:
    return wrap(remove_controls(line), count_columns(), _HANG)


def _format_same(program: KeptProgram) -> str:
    return wrap(f"Both IDs name the same program: {program.id}  {escape_controls(program.name)}", count_columns())


def find_line(differences: Sequence[ProgramDifference], program: KeptProgram) -> str | None:
    """Returns the line of source of the first thing that differs: where it is defined, or where the model says it."""
    from fusioncache.observe.explain.program_difference import find_source_line

    first = differences[0]
    text = program.read_text()
    sources = (join_sources(trace) for trace in select_traces(text).values())
    said = (find_source_line(source, first.name) for source in sources) if first.name else iter(())
    defined = find_definition(first.name) if first.where in _DEFINED else None
    return defined or next(filter(None, said), None)


def _find_neighbour(program: KeptProgram, directory: Path | None) -> KeptProgram:
    from fusioncache.observe.explain.program_difference import find_nearest_program

    _, programs = list_programs(directory)
    others = [one for one in programs if one.entry.id != program.entry.id]
    position = find_nearest_program(program.texts, [one.texts for one in others])
    if position is None:
        raise click.ClickException(
            f"{program.id} is the only program in the store: there is nothing to compare it with. Give a second ID."
        )
    # Programs of one key differ in what was read.
    nearest = [one for one in others if one.entry.digest == others[position].entry.digest]
    return min(nearest, key=lambda one: _count_reads(program, one))


def _compare_keys(a: KeptProgram, b: KeptProgram) -> tuple[ProgramDifference, ...]:
    from fusioncache.observe.explain.program_difference import compare_program_keys

    return compare_program_keys(a.texts, b.texts)


def _compare_reads(a: KeptProgram, b: KeptProgram) -> tuple[ProgramDifference, ...]:
    from fusioncache.observe.explain.program_difference import compare_reads

    one, other = ({(read.kind, read.name): read.text for read in program.read_reads()} for program in (a, b))
    return compare_reads(one, other)


def _count_reads(a: KeptProgram, b: KeptProgram) -> float:
    """Returns how many reads differ; more than any number if those of one of the two cannot be read."""
    try:
        return len(_compare_reads(a, b))
    except click.ClickException:
        return float("inf")


def _compare_traces(a: KeptProgram, b: KeptProgram) -> dict[str, tuple[list[str], list[str]]]:
    """Returns the lines of each trace that differs, in both."""
    sides = [
        {name: _split_lines(join_sources(trace)) for name, trace in select_traces(program.read_text()).items()}
        for program in (a, b)
    ]
    both = {name: (sides[0].get(name, []), sides[1].get(name, [])) for name in TRACES}
    return {name: (one, other) for name, (one, other) in both.items() if one != other}


def _split_lines(source: str) -> list[str]:
    """Returns the lines of a trace, but for those that say how long a pass took."""
    return [line for line in source.splitlines() if not line.startswith("# Constructed by ")]


def _compare_equals(a: KeptProgram, b: KeptProgram) -> str:
    """Returns a sentence about two programs with equal keys and equal reads."""
    traces = " and the ".join(_compare_traces(a, b))
    same = f"Their keys and all that was read are the same, and they differ in the {traces} trace."
    return same if traces else _SAME


def _write_sentence(found: Sequence[ProgramDifference]) -> str:
    others = len(found) - 1
    more = f", and in {others} other {'thing' if others == 1 else 'things'}" if others else ""
    return f"{found[0].compare('A', 'B').removesuffix('.')}{more}."


def _title(a: KeptProgram, b: KeptProgram) -> str:
    rows = [(mark, one.id, one.name, one.inputs) for mark, one in (("A", a), ("B", b))]
    width = count_columns()
    return "\n".join(wrap(escape_controls("  ".join(filter(None, row))), width, len("A  ")) for row in rows)


def _table(found: Sequence[ProgramDifference]) -> str:
    rows = [tuple(map(escape_controls, (difference.what, *difference.values))) for difference in found]
    return format_table(_COLUMNS, rows)


def _mark(found: Sequence[ProgramDifference]) -> str:
    """Writes each difference as the line that is only in A and the line that is only in B."""
    from fusioncache.observe.explain.program_difference import hide_graph_classes

    lines: list[str] = []
    for difference in found:
        data = difference.data()
        sides = {"-": data["before"], "+": data["after"]}
        head = " ".join(filter(None, (difference.where, difference.name)))
        lines += [hide_graph_classes(f"{mark} {head} {text}") for mark, text in sides.items() if text is not None]
    width = count_columns()
    return "\n".join(wrap(escape_controls(line), width) for line in lines)
