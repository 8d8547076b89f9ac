"""The command show: one template, one program of a model, or one family of programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from fusioncache.cli import family_parts, program_parts, template_parts
from fusioncache.cli.executables import describe_code, describe_own_code, find_reasons_not_kept
from fusioncache.cli.families import KeptFamily
from fusioncache.cli.ids import Kind, pick
from fusioncache.cli.json_output import encode_template, print_json
from fusioncache.cli.kept_executables import KeptExecutable
from fusioncache.cli.lookup import add_ingredients, find_regions, find_varying
from fusioncache.cli.options import SubjectId, directory_option, json_option
from fusioncache.cli.programs import TRACES, KeptProgram
from fusioncache.cli.source import describe_definition, describe_repro
from fusioncache.cli.template_parts import Part
from fusioncache.observe.record.reader import RecordReader
from fusioncache.observe.record.runs import Run
from fusioncache.observe.record.stats import TemplateStats

_PARTS = ("inputs", "ops", "parameters", "regions")
_SOURCES = ("definition", "code", "repro")
_OF_TEMPLATES = ("parameters", "regions")
"""Parts that only a template has, and no executable."""
_KINDS: tuple[Kind, ...] = ("template", "program", "executable", "family")


@click.command()
@click.argument("id_", metavar="ID", type=SubjectId())
@click.option("--inputs", is_flag=True, help="Only the types of its inputs.")
@click.option("--ops", is_flag=True, help="Only its operations, with their constants and attributes.")
@click.option("--parameters", is_flag=True, help="Only what may differ between regions that share it.")
@click.option("--regions", is_flag=True, help="Only the regions that have it: model, trace, and line of the source.")
@click.option("--definition", is_flag=True, help="Print its nvFuser definition, as Python. Needs nvFuser, and no GPU.")
@click.option("--code", is_flag=True, help="Print the C++ or CUDA that the compiler generated, from the store.")
@click.option("--repro", is_flag=True, help="Print a script that runs the template alone and times it.")
@click.option("--trace", "traces", type=click.Choice(TRACES), multiple=True, help="Print this trace of a program.")
@click.option("--reads", is_flag=True, help="Only what Thunder read besides the ingredients of a program's key.")
@directory_option
@json_option
def show(id_: str, as_json: bool, directory: Path | None, traces: tuple[str, ...], reads: bool, **chosen: bool) -> None:
    """Show one template, executable, program or family: what its key is made of, and what is known of it.

    ID is the start of an ID or of a name, or the whole, as 'ls', 'ls --store', 'ls --programs' and 'ls --families' list
    them.

    A template: the counts of the newest run that had it, the ingredients of its key, and its regions. Where the
    operations (ops) say constant0 or attribute0, the constants and attributes below them say what that is. An
    executable that the store cannot hold is counted with the reason.

    An executable, which a compiler made of a template for one layout of inputs: who compiled it and when, and the
    ingredients of its key.

    A program, which Thunder makes of a model for one kind of input: the ingredients of its key, and what Thunder read
    besides. --trace and --reads are for programs.

    A family, which is programs that differ in lengths only: the sizes of these programs, and the guards: conditions
    under which the program of a further length is filled in from them.

    Options that name a part leave out all others; several can be given. Of a template with residual terms, the
    definition and the script have the most terms that any region had.

    \b
    Examples:
        fusioncache show residual_tanh
        fusioncache show 3f9a2c --ops --regions
        fusioncache show 3f9a2c --definition
        fusioncache show 3f9a2c --code
        fusioncache show 3f9a2c --repro > repro.py && python repro.py
        fusioncache show Llama --trace forward
        fusioncache show 3f9a2c --json
    """
    wanted = [name for name, is_chosen in chosen.items() if is_chosen]
    found = pick(id_, directory, _find_kinds(traces, reads)).value
    match found:
        case KeptFamily():
            _refuse_parts(id_, "family", wanted)
            _print_family(found, reads=reads, as_json=as_json)
        case KeptProgram():
            _refuse_parts(id_, "program", wanted)
            _print_program(found, traces, reads=reads, as_json=as_json)
        case KeptExecutable():
            _refuse_parts(id_, "executable", [name for name in wanted if name in _OF_TEMPLATES])
            _print_executable(found, wanted, as_json=as_json)
        case Run():
            raise AssertionError("runs are not asked for")
        case _:
            record = RecordReader()
            _print_template(record, add_ingredients(record, found), wanted, directory, as_json=as_json)


def _find_kinds(traces: Sequence[str], reads: bool) -> Sequence[Kind]:
    """Returns the kinds of things that have the parts that were asked for."""
    if traces:
        return ("program",)
    return ("program", "family") if reads else _KINDS


def _print_template(
    record: RecordReader, template: TemplateStats, wanted: Sequence[str], directory: Path | None, *, as_json: bool
) -> None:
    describers: Mapping[str, Callable[[], Part]] = {
        "inputs": lambda: template_parts.describe_inputs(template),
        "ops": lambda: template_parts.describe_ops(template),
        "parameters": lambda: template_parts.describe_parameters(template, find_varying(record, template)),
        "regions": lambda: template_parts.describe_regions(find_regions(record, template)),
        "definition": lambda: describe_definition(template),
        "code": lambda: describe_code(template, directory),
        "repro": lambda: describe_repro(template),
    }
    found = {name: describers[name]() for name in (*_PARTS, *_SOURCES) if name in wanted}
    about, heading = encode_template(template), []
    if not found:
        found = {
            "ingredients": template_parts.describe_ingredients(template),
            **{name: describers[name]() for name in _OF_TEMPLATES},
        }
        (reasons,) = find_reasons_not_kept([template], directory)
        about, heading = (
            {**about, "not_kept": dict(reasons)},
            [template_parts.format_template_counts(template, reasons)],
        )
    _print(about, heading, found, as_json=as_json)


def _print_executable(executable: KeptExecutable, wanted: Sequence[str], *, as_json: bool) -> None:
    template = executable.make_template()
    describers: Mapping[str, Callable[[], Part]] = {
        "inputs": lambda: template_parts.describe_inputs(template),
        "ops": lambda: template_parts.describe_ops(template),
        "definition": lambda: describe_definition(template),
        "code": lambda: describe_own_code(executable),
        "repro": lambda: describe_repro(template),
    }
    found = {name: describe() for name, describe in describers.items() if name in wanted}
    heading = [] if found else [template_parts.format_executable(executable)]
    _print(
        executable.data(),
        heading,
        found or {"ingredients": template_parts.describe_ingredients(template)},
        as_json=as_json,
    )


def _refuse_parts(id_: str, kind: str, chosen: Sequence[str]) -> None:
    for name in chosen:
        an = "an" if kind == "executable" else "a"
        raise click.UsageError(
            f"--{name} shows a part of a template, and {id_} is {an} {kind}: leave out --{name}, or give the ID of a "
            "template, see 'fusioncache ls'."
        )


def _print_family(family: KeptFamily, *, reads: bool, as_json: bool) -> None:
    found = {"reads": program_parts.describe_reads(family.read_reads())}
    if not reads:
        outline = family.read_outline()
        parts = {"programs": family_parts.describe_sizes(outline), "guards": family_parts.describe_guards(outline)}
        found = {**parts, **found}
    if as_json:
        print_json({**family.data(), **{name: part.data for name, part in found.items()}})
        return
    heading = [] if reads else [family_parts.describe_family(family)]
    click.echo("\n\n".join(part.text for part in (*heading, *found.values())))


def _print_program(program: KeptProgram, traces: Sequence[str], *, reads: bool, as_json: bool) -> None:
    found: dict[str, Part] = {}
    if traces:
        found["traces"] = program_parts.describe_traces(program.read_text(), traces)
    if reads or not traces:
        found["reads"] = program_parts.describe_reads(program.read_reads())
    whole = not (traces or reads)
    if as_json:
        about = program_parts.describe_program(program).data if whole else program.data()
        key = {"key": program_parts.describe_key(program).data} if whole else {}
        every = {"traces": program_parts.describe_traces(program.read_text(), TRACES).data} if whole else {}
        print_json({**about, **key, **{name: part.data for name, part in found.items()}, **every})
        return
    heading = [program_parts.describe_program(program), program_parts.describe_key(program)] if whole else []
    click.echo("\n\n".join(part.text for part in (*heading, *found.values())))


def _print(about: Mapping[str, Any], heading: Sequence[str], found: Mapping[str, Part], *, as_json: bool) -> None:
    """Prints parts of a template or an executable, under a heading if there is one."""
    if as_json:
        print_json({**about, **_data(found)})
        return
    click.echo("\n\n".join([*heading, *(part.text.rstrip("\n") for part in found.values())]))


def _data(found: Mapping[str, Part]) -> dict[str, Any]:
    """Returns the parts as fields. ``regions`` is a count already."""
    data = {"seen_in" if name == "regions" else name: part.data for name, part in found.items()}
    chosen = [one for name in ("inputs", "ops") for one in data.pop(name, ())]
    return {**({"ingredients": chosen} if chosen else {}), **data}
