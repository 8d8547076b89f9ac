"""The command show: prints one template with its code and places, one executable, one program, or one family."""

from __future__ import annotations

import difflib
import linecache
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import click

from fusioncache.backends.api import BACKENDS, Description, backend_class, describe
from fusioncache.cli.console import (
    ANY_ID,
    ID_DIGITS,
    Column,
    cut,
    directory_option,
    encode_fields,
    format_block,
    format_cell,
    format_lines,
    format_pairs,
    format_table,
    highlight_source,
    json_option,
    print_json,
    say,
    shorten_id,
)
from fusioncache.cli.things import (
    TRACES,
    Kind,
    Outline,
    StoredEntry,
    find_regions,
    find_varying,
    format_lengths,
    is_expected,
    list_sources,
    list_stored,
    pick,
)
from fusioncache.humanize import (
    escape_controls,
    format_arities,
    format_bytes,
    format_count,
    format_number,
    format_ranges,
    format_seconds,
    format_time,
)
from fusioncache.ir import Graph, NumberType
from fusioncache.ir.ops import RESIDUAL
from fusioncache.observe.explain.difference import list_lines
from fusioncache.observe.record.database import RecordReader
from fusioncache.observe.record.observations import Line, RegionRecord
from fusioncache.observe.record.stats import TemplateStats
from fusioncache.observe.trace_files import TraceFile, list_processes, read_traces
from fusioncache.process.secrets import blur, hide_line
from fusioncache.process.settings import PASSES, find_directory
from fusioncache.store.files import Refusal
from fusioncache.template.key import make_key
from fusioncache.template.plan import inline, list_graphs
from fusioncache.template.text import read_exactly, read_graph

_WHOLE = ("ingredients", "parameters", "regions", "key", "programs", "guards", "reads")
"""The parts that are shown if no option names one."""
_LONGEST = 100
_REGION_COLUMNS = (
    Column("model", fold=True, rank=5),
    Column("trace"),
    Column("number", key="trace_number", number=True, rank=4),
    Column("region", key="name", rank=3),
    Column("outcome", fold=True),
    Column("terms", lambda arities: format_cell(" / ".join(map(str, arities))), "arities", rank=1),
    Column("plan", rank=2),
    Column("module", fold=True),
    Column("line", fold=True),
)
_INGREDIENT_COLUMNS = (
    Column("ingredient", key="name"),
    Column("lines", lambda text: str(_count_lines(text)), "text", number=True),
    Column("digest", lambda digest: (digest or "")[:ID_DIGITS]),
)
_READ_COLUMNS = (
    Column("kind"),
    Column("name", lambda name: cut(name, _LONGEST), fold=True),
    Column("value", lambda text: cut(text, _LONGEST), "text", fold=True),
)
_SIZE_COLUMNS = (Column("argument", fold=True), Column("sizes", format_lengths, fold=True))
_WRITTEN: Mapping[str, Callable[[Any], str]] = {
    **{"digest": shorten_id, "arities": format_arities, "size": format_bytes, "seconds": format_seconds},
    **{"created": format_time, "used": format_time, "guards": lambda guards: str(len(guards))},
    **{"lengths": format_lengths, "templates": lambda names: ", ".join(names) or "(none)"},
    "not_stored": lambda reasons: "; ".join(f"{number}: {reason}" for reason, number in sorted(reasons.items())),
}
"""The formats of fields that are neither numbers nor plain texts."""

_LABELS = {"not_stored": "not stored", "refused": "not stored"}

type Part = tuple[str, Any]
"""One part of the output: its text for people, under its heading, and its data for JSON."""
type Describers = Mapping[str, Callable[[], Part]]
"""Functions that describe the parts of a thing, by the names of their options."""


@click.command()
@click.argument("id_", metavar="ID", type=ANY_ID, required=False)
@click.option("--parameters", is_flag=True, help="Only the values that may differ between its regions.")
@click.option("--regions", is_flag=True, help="Only its regions: model, trace, and source line.")
@click.option("--definition", is_flag=True, help="Print its nvFuser definition in Python. Needs nvFuser, but no GPU.")
@click.option("--code", is_flag=True, help="Print the C++ or CUDA code that the compiler generated, from the store.")
@click.option("--repro", is_flag=True, help="Print a script that runs the template alone and times it.")
@click.option("--trace", "traces", type=click.Choice(TRACES), multiple=True, help="Print this trace of a program.")
@click.option("--reads", is_flag=True, help="Only the reads of a program or family, without its key.")
@click.option("--passes", is_flag=True, help="Print each trace of the last process after each pass. Takes no ID.")
@directory_option
@json_option
def show(id_: str | None, as_json: bool, directory: Path | None, passes: bool, **chosen: Any) -> None:
    """Show one template, executable, program or family.

    ID is an ID or a name from 'ls', 'ls --store', 'ls --programs' or 'ls --families', or its start.

    Of a template, it shows the counts of the newest run that had it, its key with numbered operations (ops), and its
    regions. Executables that the store cannot hold are counted by reason.

    Of an executable (the compiled code of a template for one layout of its inputs), it shows the compiler, machine and
    time of its compile, and the ingredients of its key.

    Of a program (the traces that Thunder makes of a model for one kind of input), it shows the ingredients of its key,
    and its reads: the other values that it depends on. --trace is for programs, --reads for programs and families.

    Of a family (programs that differ only in sizes), it shows these sizes, its reads, and its guards: conditions under
    which a program with other sizes is filled in.

    --passes helps to develop passes. A process with FUSIONCACHE_PASSES=1 writes each trace as Thunder made it, and
    again after each pass that changed it. The first is printed whole, the others as differences.

    Options for parts omit all other parts; several can be given. With residual chains, the definition and the script
    have the most terms that any region had.

    \b
    Examples:
        fusioncache show residual_tanh
        fusioncache show 3f9a2c --regions
        fusioncache show 3f9a2c --definition
        fusioncache show 3f9a2c --code
        fusioncache show 3f9a2c --repro > repro.py && python repro.py
        fusioncache show Llama --trace forward
        fusioncache show 3f9a2c --json
        FUSIONCACHE_PASSES=1 python train.py && fusioncache show --passes
    """
    if passes:
        _print_passes(id_, as_json=as_json)
    elif id_ is None:
        raise click.UsageError("Missing argument 'ID'.")
    else:
        _print_thing(id_, directory, chosen, as_json=as_json)


def _print_thing(id_: str, directory: Path | None, chosen: Mapping[str, Any], *, as_json: bool) -> None:
    """Prints the thing that an ID names, or only the parts whose options are chosen."""
    wanted = [name for name, is_chosen in chosen.items() if is_chosen]
    kinds: tuple[Kind, ...] = ("template", "program", "executable", "family")
    kinds = ("program",) if "traces" in wanted else ("program", "family") if "reads" in wanted else kinds
    one = pick(id_, directory, kinds)
    value = one.value
    assert isinstance(value, TemplateStats | StoredEntry)
    describers = _list_parts(value, directory, chosen["traces"] or TRACES)
    if refused := next((name for name in wanted if name not in describers), None):
        an = "an" if one.kind == "executable" else "a"
        raise click.UsageError(
            f"--{refused} shows a part of a template, and {id_} is {an} {one.kind}: leave out --{refused}, or "
            "give the ID of a template, see 'fusioncache ls'."
        )
    about = value.to_dict()
    if isinstance(value, TemplateStats) and not wanted:
        (about["not_stored"],) = find_reasons_not_stored([value], directory)
    parts = wanted or [name for name in describers if name in _WHOLE or (as_json and name == "traces")]
    _print_parts(about, "" if wanted else _write_fields(about), describers, parts, as_json=as_json)


def _print_passes(id_: str | None, *, as_json: bool) -> None:
    """Prints the traces of the last process that wrote them, after each pass that changed them."""
    if id_ is not None:
        raise click.UsageError(f"--passes shows the traces of the last process that wrote them: leave out {id_}.")
    parent = find_directory() / "passes"
    processes = list_processes(parent)
    if not processes:
        raise click.ClickException(
            f"there are no traces in {parent}: run a model with {PASSES.name}=1 first, such as "
            f"'{PASSES.name}=1 python train.py'"
        )
    found = list(read_traces(processes[0]))
    if as_json:
        print_json({"process": processes[0].name, "traces": [encode_fields(each) for each in found]})
        return
    before: TraceFile | None = None
    for each in found:
        is_first = before is None or before.trace != each.trace
        lines = [each.text.rstrip()] if is_first else _compare_traces(before.text if before else "", each.text)
        say(f"=== {each.trace}: {'as Thunder made it' if is_first else f'after {each.name}'}", err=False)
        say("\n".join(lines) + "\n", err=False)
        before = each


def _compare_traces(before: str, after: str) -> list[str]:
    """Returns the lines that differ, with three equal lines of context around each."""
    return list(difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=3))[2:]


def _list_parts(value: TemplateStats | StoredEntry, directory: Path | None, traces: Sequence[str]) -> Describers:
    """Returns the functions that describe the parts of a template, or of a stored entry."""
    if isinstance(value, StoredEntry) and value.kind == "program":
        return {
            "key": lambda: _describe_key(value),
            "reads": lambda: _describe_reads(value),
            "traces": lambda: _describe_traces(value, traces),
        }
    if isinstance(value, StoredEntry) and value.kind == "family":
        return {
            "programs": lambda: _describe_sizes(value.read_outline()),
            "guards": lambda: _describe_guards(value.read_outline()),
            "reads": lambda: _describe_reads(value),
        }
    template = value.make_template() if isinstance(value, StoredEntry) else value
    key = {
        "ingredients": lambda: _describe_ingredients(template),
        "definition": lambda: _highlight(_write_definition(template)),
        "repro": lambda: _highlight(_write_repro(template)),
    }
    if isinstance(value, StoredEntry):
        return {**key, "code": lambda: _describe_executables([value], value.name)}
    return {
        **key,
        "parameters": lambda: _describe_parameters(RecordReader(), template),
        "regions": lambda: _describe_regions(find_regions(RecordReader(), template)),
        "code": lambda: _describe_code(template, directory),
    }


def _print_parts(
    about: Mapping[str, Any], heading: str, describers: Describers, wanted: Sequence[str], *, as_json: bool
) -> None:
    """Prints parts of a thing, under a heading if there is one; as JSON together with the thing's fields."""
    found = {name: describe() for name, describe in describers.items() if name in wanted}
    if not as_json:
        click.echo("\n\n".join(filter(None, [heading, *(text.rstrip("\n") for text, _ in found.values())])))
        return
    data = {"seen_in" if name == "regions" else name: part for name, (_, part) in found.items()}  # also a count's name
    print_json({**about, **data})


def _write_fields(data: Mapping[str, Any]) -> str:
    """Returns the fields of a thing's JSON as text for people, without empty ones."""
    known = ((name, value) for name, value in data.items() if value not in (None, {}))
    return format_pairs(
        (_LABELS.get(name, name.replace("_", " ")), _WRITTEN.get(name, format_number)(value)) for name, value in known
    )


def _describe_ingredients(template: TemplateStats) -> Part:
    """Returns the lines of the key; as data each ingredient with its digest."""
    named = template.ingredients
    data = [{"name": name, "digest": sha256(text.encode()).hexdigest(), "text": text} for name, text in named]
    return format_lines("key", list_lines(template.texts)), data


def _describe_parameters(record: RecordReader, template: TemplateStats) -> Part:
    """Returns the parameters that differ between regions of the template: residual terms, sizes, and numbers."""
    varying = find_varying(record, template)
    try:
        graph = read_graph(template.texts)
    except ValueError:
        graph = Graph((), (), ())  # its ingredients are shown as they are
    sums = [f"%{first}" for op, first in graph.results() if op.name == RESIDUAL]
    seen = [sorted(set(chain)) for chain in zip(*template.arities, strict=False)]
    terms = [{"value": value, "seen": terms} for value, terms in zip(sums, seen, strict=False)]
    sizes = [f"%{value}" for value in range(len(graph.inputs), graph.first_result)]
    numbers = [f"%{value}" for value, type_ in enumerate(graph.inputs) if isinstance(type_, NumberType)]
    lines = [
        *(f"residual terms of {value}: {format_ranges(terms)}" for value, terms in zip(sums, seen, strict=False)),
        *(f"size {value}" for value in sizes),
        *(f"number {value}" for value in numbers),
        *(f"other templates are the same but for {each.text()}" for each in varying),
    ]
    data = {"residual_terms": terms, "sizes": sizes, "numbers": numbers, "varying": varying}
    return format_lines("parameters", lines), data


def _describe_regions(records: Sequence[RegionRecord]) -> Part:
    """Returns every region that has the template."""
    data = [encode_region(record) for record in records]
    rows = [{**region, **_write_place(record)} for region, record in zip(data, records, strict=True)]
    return _write_table("regions", _REGION_COLUMNS, rows), data


def encode_region(region: RegionRecord) -> dict[str, Any]:
    """Returns the fields of one region: its place, its outcome, and its source lines."""
    source, left_out = region.source, ("digest", "source", "ops", "inputs", "outputs")
    lines = [{"file": line.file, "line": line.number, "library": line.library} for line in source.lines]
    own = {name: value for name, value in encode_fields(region).items() if name not in left_out}
    return {**own, "module": source.module, "layer": source.layer, "lines": lines}


def _write_place(region: RegionRecord) -> dict[str, str | None]:
    line = _find_line(region)
    reason = f" ({region.reason})" if region.reason is not None else ""
    return {"outcome": f"{region.outcome}{reason}", "line": _format_line(line) if line else None}


def _describe_key(stored: StoredEntry) -> Part:
    """Returns the ingredients of the key, in short; as data with all texts."""
    digests = dict(stored.entry.ingredients)
    data = [{"name": name, "digest": digests.get(name), "text": blur(text)} for name, text in stored.texts.items()]
    return _write_table("key", _INGREDIENT_COLUMNS, data), data


def _describe_reads(stored: StoredEntry) -> Part:
    """Returns the reads of the derivation besides its key, one line each; as data with all texts."""
    data = [{"kind": read.kind, "name": read.name, "text": blur(read.text)} for read in stored.read_reads()]
    return _write_table(format_count(len(data), "read", "reads"), _READ_COLUMNS, data), data


def _describe_traces(stored: StoredEntry, names: Sequence[str]) -> Part:
    """Returns the source of the traces with these names, as text and as data."""
    sources = list_sources(stored.read_traces())
    data = {name: blur(source) for name, source in sources.items() if name in names}
    return "\n\n\n".join(highlight_source(source, "python").strip("\n") for source in data.values()), data


def _describe_sizes(outline: Outline) -> Part:
    """Returns the sizes of the arguments of each program in a family."""
    data = [{_name_place(place): sizes for place, sizes in each.items()} for each in outline.programs]
    rows = [(place, [sizes[place] for sizes in data]) for place in (data[0] if data else ())]
    return _write_table(format_count(len(data), "program", "programs"), _SIZE_COLUMNS, rows), data


def _describe_guards(outline: Outline) -> Part:
    """Returns the guards of a family: conditions that a further length must meet, so that its program is filled in."""
    heading = format_count(len(outline.guards), "guard", "guards")
    return format_lines(heading, outline.guards), list(outline.guards)


def _name_place(place: int | str) -> str:
    return f"args[{place}]" if isinstance(place, int) else place


def _write_table(heading: str, columns: Sequence[Column], rows: Sequence[Any]) -> str:
    return format_block(heading, format_table(columns, rows, indent=2) if rows else "(none)")


def _highlight(text: str) -> Part:
    return highlight_source(text, "python"), text


def _count_lines(text: str) -> int:
    return text.rstrip("\n").count("\n") + 1 if text.strip("\n") else 0


_INSTALLED = ("site-packages", "dist-packages")
"""Names of the folders with installed packages."""
_MOST = 3
"""How many locations of a template are shown."""


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """A location in the source of a model.

    Attributes:
        where: a module, and forward or backward.
        line: a line of the source; None if it is not known.
    """

    where: str
    line: Line | None

    def __str__(self) -> str:
        if not self.line:
            return self.where
        text = hide_line(linecache.getline(self.line.file, self.line.number).strip())
        return f"{self.where}: {_format_line(self.line)}{f'  {text}' if text else ''}"

    def to_dict(self) -> dict[str, Any]:
        """Returns the location as data for JSON."""
        line = self.line
        return {"place": self.where, "file": line and line.file, "line": line and line.number}


def find_locations(regions: Iterable[RegionRecord]) -> tuple[SourceLocation, ...]:
    """Returns the source locations of regions, each once."""
    named = ((f"{region.source.module or 'the model'}, {region.trace}", _find_line(region)) for region in regions)
    return tuple(dict.fromkeys(SourceLocation(where, line) for where, line in named))


def _find_line(region: RegionRecord) -> Line | None:
    """Returns the source line of a region: the first of the user's, or else of a library's, or None."""
    return next(iter(region.source.lines), None)


def format_locations(locations: Sequence[SourceLocation]) -> list[str]:
    """Returns the first few locations, a line each, and how many more there are."""
    lines, more = [*map(str, locations[:_MOST])], len(locations) - _MOST
    return [*lines, f"and {format_count(more, 'more place', 'more places')}"] if more > 0 else lines


def _format_line(line: Line) -> str:
    """Returns the path and number of a line. A path in an installed package begins with the package's name."""
    return f"{_shorten_file(Path(line.file))}:{line.number}"


def _shorten_file(file: Path) -> Path:
    installed = next((folder for folder in file.parents if folder.name in _INSTALLED), None)
    return file.relative_to(installed) if installed else file


def read_template_graph(template: TemplateStats) -> Graph:
    """Returns the graph of a recorded template.

    Raises:
        click.ClickException: if the recorded text is not a template's.
    """
    try:
        return read_exactly(template.texts)
    except ValueError as error:
        raise _make_record_error(template, error) from error


def _make_record_error(template: TemplateStats, error: ValueError) -> click.ClickException:
    """Returns the error for a recorded template that cannot be read."""
    return click.ClickException(
        f"what is recorded of {template.name} cannot be read: {error}. Run the model again to record it anew"
    )


def _write_definition(template: TemplateStats) -> str:
    """Returns the template's definition for the first backend that has definitions, even if another compiled it.

    Raises:
        click.ClickException: if that compiler is not installed, or cannot express the template.
    """
    graph = inline(read_template_graph(template), _most_terms(template))
    try:
        return next(filter(None, (backend_class(name).definition(graph) for name in BACKENDS)))
    except ValueError as error:
        raise click.ClickException(str(error)) from error


def _write_repro(template: TemplateStats) -> str:
    """Returns a script that runs the template alone."""
    from fusioncache.backends.script import write_script

    terms = _most_terms(template)
    return write_script(template.name, inline(read_template_graph(template), terms), terms)


def _most_terms(template: TemplateStats) -> tuple[int, ...]:
    return max(template.arities, key=sum, default=())


def _select_executables(template: TemplateStats, stored: Sequence[StoredEntry]) -> list[StoredEntry]:
    """Returns the executables of the template's parts, for any layout, options and versions.

    Raises:
        click.ClickException: if the recorded text or counts are not a template's.
    """
    graph = read_template_graph(template)
    try:
        compiled = [make_key(each, {}) for arities in template.arities for each in list_graphs(graph, arities)]
    except ValueError as error:
        raise _make_record_error(template, error) from error
    wanted = {tuple(sorted((part.name, part.digest) for part in key.ingredients)) for key in compiled}
    names = {name for parts in wanted for name, _ in parts}
    keys = (tuple(sorted(part for part in one.entry.ingredients if part[0] in names)) for one in stored)
    return [one for one, key in zip(stored, keys, strict=True) if key in wanted]


def find_reasons_not_stored(templates: Sequence[TemplateStats], directory: Path | None) -> Sequence[Mapping[str, int]]:
    """Returns for each template why executables of it cannot be stored, and how many, as noted in the store.

    Raises:
        StoreError, OSError: if a named store does not exist, or the store cannot be used.
    """
    stored = list_stored(directory, "executable")[1] if is_expected(directory) else ()
    notes = [one for one in stored if one.refused is not None]
    return [_count_reasons(template, notes) if notes else {} for template in templates]


def _count_reasons(template: TemplateStats, notes: Sequence[StoredEntry]) -> Mapping[str, int]:
    try:
        return Counter(str(one.refused) for one in _select_executables(template, notes))
    except click.ClickException:
        return {}  # the commands that need the graph report the error


def _describe_code(template: TemplateStats, directory: Path | None) -> Part:
    """Returns the stored code of each executable that was compiled for a template, as text and as data.

    Raises:
        click.ClickException: if the store has none.
    """
    stored = list_stored(directory, "executable")[1] if is_expected(directory) else ()
    found = _select_executables(template, stored)
    if not found:
        how = " ".join(hint.format(name=template.name) for hint in _list_hints().values())
        raise click.ClickException(f"the store has no code of {template.name}: it was not stored, or removed. {how}")
    return _describe_executables(found, template.name)


def _describe_executables(stored: Sequence[StoredEntry], name: str) -> Part:
    """Returns the stored code of executables, as text and as data. Prints how to get missing source."""
    described = [(one, *_describe_artifacts(one)) for one in stored]
    lacking = Counter(one.entry.backend for one, about, _ in described if one.refused is not None or about.lacks_source)
    for backend, hint in _list_hints().items():
        if number := lacking[backend]:
            those_were = format_count(number, "executable was", "executables were")
            say(f"{those_were} stored without source. {hint.format(name=name)}")
    return "\n\n".join(_write_code(*each) for each in described), [_encode_code(*each) for each in described]


def _list_hints() -> dict[str, str]:
    """Returns instructions to see the source of kernels, by backend, for the backends that have some."""
    hints = {name: backend_class(name).source_hint for name in BACKENDS}
    return {name: hint for name, hint in hints.items() if hint}


def _describe_artifacts(one: StoredEntry) -> tuple[Description, list[str]]:
    """Returns the backend's description of an executable's artifacts, and the names of unreadable artifacts."""
    contents: dict[str, bytes] = {}
    damaged = []
    for artifact in one.entry.artifacts:
        try:
            contents[artifact.name] = one.disk.content(artifact)
        except (Refusal, OSError):
            damaged.append(artifact.name)
    return describe(one.entry.backend, contents), damaged


def _encode_code(one: StoredEntry, about: Description, damaged: Sequence[str]) -> dict[str, Any]:
    return {
        **{"id": one.entry.id, "name": one.entry.name, "backend": one.entry.backend, "created": one.entry.created},
        "artifacts": {artifact.name: artifact.size for artifact in one.entry.artifacts},
        "sources": {source.name: source.text for source in about.sources},
        **{"damaged": damaged, "launches": about.launches, "refused": one.refused},
    }


def _write_code(one: StoredEntry, about: Description, damaged: Sequence[str]) -> str:
    sizes = ", ".join(f"{artifact.name} {format_bytes(artifact.size)}" for artifact in one.entry.artifacts)
    lines = [f"{one.entry.id}  {one.entry.name}".rstrip(), sizes]
    lines += [f"not stored: {one.refused}"] if one.refused is not None else []
    lines += [f"{name} is damaged: 'fusioncache verify' says more" for name in damaged]
    lines += [
        f"{each['function']}  grid {each['grid']}  block {each['block']}  shared {each['shared']} B  {each['cubin']}"
        for each in about.launches
    ]
    blocks = ["\n".join(f"# {escape_controls(line)}" for line in lines)]
    for source in about.sources:
        text = highlight_source(source.text, source.language).rstrip("\n")
        blocks.append(f"# {escape_controls(source.name)}\n{text}")
    return "\n\n".join(blocks)
