"""The command explain: why a run compiled, and why two templates, or two programs, are not one."""

from __future__ import annotations

from pathlib import Path

import click

from fusioncache.cli.ids import Kind, pick
from fusioncache.cli.lookup import pick_run
from fusioncache.cli.misses import print_misses
from fusioncache.cli.options import SubjectId, directory_option, json_option, run_option
from fusioncache.cli.program_comparison import explain_program
from fusioncache.cli.programs import KeptProgram
from fusioncache.cli.template_comparison import find_nearest_subject, print_comparison, read_subject
from fusioncache.observe.record.reader import RecordReader

_KINDS: tuple[Kind, ...] = ("template", "program", "executable")


@click.command()
@click.argument("a", metavar="[A]", required=False, type=SubjectId())
@click.argument("b", metavar="[B]", required=False, type=SubjectId())
@click.option("--width", type=click.IntRange(40), help="Columns of the output; by default those of the terminal.")
@click.option("--all", "everything", is_flag=True, help="Print the lines that are the same in both as well.")
@run_option
@directory_option
@json_option
def explain(
    a: str | None,
    b: str | None,
    width: int | None,
    everything: bool,
    run_id: str | None,
    directory: Path | None,
    as_json: bool,
) -> None:
    """Say why a run compiled, or in what two templates, executables or programs differ.

    Without A, it lists the templates that the newest run compiled. One sentence for each names the nearest template
    known before, and in what the two differ; a line at the end counts what was loaded from the store.

    A and B are starts of IDs or names, or the whole, as 'ls' and 'ls --store' list them. Without B, A is compared with
    the nearest of all others. One sentence says what differs first of all; differences that follow from others are left
    out. Below it the lines that differ stand side by side, each operation (op) beside the one in its place: | marks a
    line that differs, < and > a line that only A or only B has.

    A and B may also be programs, as 'ls --programs' lists them; a model's name is its newest program. What differs is a
    line of their keys, or something that Thunder read while it traced.

    \b
    Examples:
        fusioncache explain
        fusioncache explain --run 5f3a
        fusioncache explain residual_tanh_3f9a2c71
        fusioncache explain 3f9a2c 77b1 --width 200
        fusioncache explain Llama
        fusioncache explain 3f9a2c --json
    """
    if a is None:
        if width is not None or everything:
            raise click.UsageError("--width and --all are for two templates side by side: give the ID of a template.")
        record = RecordReader()
        print_misses(record, pick_run(record, run_id), directory, as_json=as_json)
    elif run_id is not None:
        raise click.UsageError("--run lists what a run compiled, and an ID names one template: give only one of them.")
    else:
        _compare(a, b, width, everything, directory, as_json)


def _compare(a: str, b: str | None, width: int | None, everything: bool, directory: Path | None, as_json: bool) -> None:
    # A model's name stands for its newest program: that is what a job has just derived, and why it did is the question.
    one = pick(a, directory, _KINDS, newest=True)
    kinds: tuple[Kind, ...] = ("program",) if one.kind == "program" else ("template", "executable")
    other = None if b is None else pick(b, directory, kinds)
    if isinstance(one.value, KeptProgram):
        against = other.value if other else None
        assert against is None or isinstance(against, KeptProgram)
        explain_program(one.value, against, directory, as_json=as_json)
        return
    subject = read_subject(one, directory)
    neighbour = read_subject(other, directory) if other else find_nearest_subject(subject, directory)
    print_comparison(subject, neighbour, width, everything=everything, as_json=as_json)
