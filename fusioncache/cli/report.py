"""The command report: writes a run as one HTML file that needs no other file and no network, or as JSON."""

from __future__ import annotations

import base64
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fusioncache.cli.comparison import explain_templates
from fusioncache.cli.console import encode_fields, force_option, json_option, print_json, run_option, write_file
from fusioncache.cli.overview import encode_run
from fusioncache.cli.picture import picture_of, svg_text
from fusioncache.cli.show import encode_region
from fusioncache.cli.things import pick_run
from fusioncache.humanize import (
    describe_savings,
    escape_controls,
    format_arities,
    format_bytes,
    format_duration,
)
from fusioncache.ir import TensorType
from fusioncache.ir.keys import GRAPH
from fusioncache.observe.explain.difference import find_relatives
from fusioncache.observe.record.database import RecordReader
from fusioncache.observe.record.observations import (
    ANY_SIZES,
    PHASES,
    ChoiceRecord,
    Line,
    Phases,
    PlacementRecord,
    RegionRecord,
    Run,
    Source,
)
from fusioncache.observe.record.stats import TemplateStats, find_bypasses, find_not_given
from fusioncache.template.text import read_exactly, read_inputs

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

_FILE = Path("fusioncache-report.html")


@click.command()
@run_option
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=_FILE,
    help=f"The file to write, {_FILE} by default.",
)
@click.option("--open", "open_", is_flag=True, help="Open the file in the browser.")
@force_option
@json_option
def report(run_id: str | None, output: Path, open_: bool, force: bool, as_json: bool) -> None:
    """Write a run as one HTML file that needs no network.

    The file has a map of the model with the shared regions, each template with its ops, the reason of each miss, all
    that was bypassed or left out, the time of each phase, and the choices for residual streams. --json prints the data,
    and writes no file.

    \b
    Examples:
        fusioncache report --open
        fusioncache report --run 5f3a -o slow.html
    """
    record = RecordReader()
    found = read_contents(record, pick_run(record, run_id))
    if as_json:
        print_json(_encode(found))
        return
    write_file(output, render_report(found).encode(), force=force)
    if open_:
        click.launch(output.absolute().as_uri())


def _encode(contents: Contents) -> dict[str, Any]:
    """Returns the contents of a report as data for JSON."""
    templates = [
        {**each.stats.to_dict(), "regions_at": [region.number for region in each.regions]}
        for each in contents.templates
    ]
    regions = [
        {"template": each.record.digest, **encode_region(each.record), "ops": each.record.ops}
        for each in contents.regions
    ]
    misses = [
        {"template": miss.template.digest, **miss.to_dict()}
        for miss in explain_templates([each.stats for each in contents.met])
    ]
    return {
        **{"run": encode_run(contents.run), "models": contents.run.models, "environment": contents.environment},
        **{"templates": templates, "regions": regions, "misses": misses},
        **{"choices": contents.choices, "placements": contents.placements},
    }


GENERATOR = "fusioncache report"
"""The generator that a report names in its head."""


@dataclass(frozen=True, slots=True)
class ReportRegion:
    """A region in the report.

    Attributes:
        number: its position among all regions of the run, from 0.
        record: its data in the record.
        template: the number of its template; None if it was bypassed.
    """

    number: int
    record: RegionRecord
    template: int | None


@dataclass(frozen=True, slots=True)
class ReportTemplate:
    """A template in the report.

    Attributes:
        number: its position among all templates, the most expensive first, from 1.
        stats: its data in the record.
        regions: the regions that have it, in their order.
        colour: its index among the templates of several regions, by their first regions; None if only one has it.
    """

    number: int
    stats: TemplateStats
    regions: tuple[ReportRegion, ...]
    colour: int | None

    @property
    def is_general(self) -> bool:
        """True if code for any sizes serves one of its regions, rather than code for the region's sizes."""
        return any(region.record.plan == ANY_SIZES for region in self.regions)


@dataclass(frozen=True, slots=True)
class Contents:
    """The contents of a report.

    Attributes:
        run: the run, with its counts and phases.
        templates: its templates, the most expensive first.
        regions: its regions, in the order of its traces.
        choices: the choices for its residual streams.
        placements: the positions of the collectives in its traces.
    """

    run: Run
    templates: tuple[ReportTemplate, ...]
    regions: tuple[ReportRegion, ...]
    choices: tuple[ChoiceRecord, ...]
    placements: tuple[PlacementRecord, ...] = ()

    @property
    def environment(self) -> dict[str, tuple[str, ...]]:
        """The environment of the compilations: devices, and each ingredient that describes no graph, with its texts."""
        found: dict[str, dict[str, None]] = {"device": {}}
        for template in self.templates:
            found["device"] |= dict.fromkeys(_devices(template.stats.texts.get("inputs", "")))
            for name, text in template.stats.ingredients:
                if name not in GRAPH:
                    found.setdefault(name, {})[text] = None
        return {name: tuple(texts) for name, texts in found.items() if texts}

    @property
    def met(self) -> tuple[ReportTemplate, ...]:
        """The templates in the order in which the run met them. Those without a recorded region come last."""
        last = len(self.regions)
        return tuple(sorted(self.templates, key=lambda each: min((one.number for one in each.regions), default=last)))


def read_contents(record: RecordReader, run: Run) -> Contents:
    """Returns the contents of a run's report, from the record."""
    templates = record.templates(run.id)
    numbers = {template.digest: number for number, template in enumerate(templates, 1)}
    regions = tuple(
        ReportRegion(number, region, numbers.get(region.digest) if region.digest else None)
        for number, region in enumerate(record.regions(run.id))
    )
    of: defaultdict[int | None, list[ReportRegion]] = defaultdict(list)
    for region in regions:
        of[region.template].append(region)
    # The record may have a template without its regions, for lack of room: that one comes last.
    order = [*of, *(number for number in numbers.values() if number not in of)]
    repeated = [number for number in order if number is not None and templates[number - 1].regions > 1]
    listed = tuple(
        ReportTemplate(number, template, tuple(of[number]), repeated.index(number) if number in repeated else None)
        for number, template in enumerate(templates, 1)
    )
    return Contents(run, listed, regions, record.records(run.id, ChoiceRecord), record.records(run.id, PlacementRecord))


def _devices(inputs: str) -> list[str]:
    """Returns the device types of the tensors among the inputs; none if the ingredient cannot be read."""
    try:
        return [type_.device for type_ in read_inputs(inputs) if isinstance(type_, TensorType)]
    except ValueError:
        return []


MOST_ROWS = 200
"""How many collectives of a trace are listed."""


def render_report(contents: Contents) -> str:
    """Returns the report as HTML, to the letter the same for the same contents."""
    met = contents.met
    return (
        make_environment()
        .get_template("page.html")
        .render(
            generator=GENERATOR,
            contents=contents,
            run=contents.run,
            grids=make_grids(contents.regions),
            misses=explain_templates([each.stats for each in met]),
            templates={each.stats.digest: each for each in contents.templates},
            families=sorted(find_relatives([each.stats.texts for each in met]), key=lambda each: -len(each.members)),
            met=met,
            most_rows=MOST_ROWS,
            slices=cut_slices(contents.run.phases),
            not_given=find_not_given(contents.run.stats.bypasses),
            bypasses=find_bypasses(contents.run.stats.bypasses),
        )
    )


def make_environment() -> Environment:
    """Returns the Jinja environment of the pages, with all their filters. It escapes everything."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    pages = Environment(
        loader=PackageLoader("fusioncache.cli", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_printable,
    )
    pages.filters |= {
        "seconds": format_duration,
        "savings": describe_savings,
        "moment": _moment,
        "percent": _percent,
        "bytes": format_bytes,
        "arities": format_arities,
        "short": _short,
        "graph": _graph,
        "file": _read_file,
        "hash": _hash,
    }
    return pages


def _printable(value: Any) -> Any:
    """Returns a value as text with escaped control characters, which HTML must not contain. Markup stays as it is."""
    return value if hasattr(value, "__html__") else escape_controls(str(value))


def _read_file(name: str) -> Markup:
    """Returns a style sheet or a script of the pages, which is not escaped."""
    from markupsafe import Markup

    return Markup(files("fusioncache.cli").joinpath("page", name).read_text(encoding="utf-8"))


def _hash(text: str) -> str:
    """Returns the digest of a script or style, in the form that a content security policy uses to allow it."""
    return base64.b64encode(sha256(text.encode()).digest()).decode()


def _moment(seconds: float) -> str:
    """Formats a time in UTC, because the file may be read in any time zone."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _percent(share: float) -> str:
    if 0 < share < 0.0005:
        return "< 0.1%"
    return f"{share:.0%}" if share >= 0.0995 or share == 0 else f"{share:.1%}"


def _short(line: Line) -> str:
    """Returns a line's number and the last two parts of its path, or its path within an installed package."""
    path = line.file.replace("\\", "/")
    inside = path.rpartition("/site-packages/")[2]
    return f"{inside if inside != path else '/'.join(path.split('/')[-2:])}:{line.number}"


def _graph(template: ReportTemplate) -> Markup | None:
    """Returns the template's graph as SVG; None if its recorded text cannot be read."""
    from markupsafe import Markup

    try:
        picture = picture_of(read_exactly(template.stats.texts))
    except ValueError:
        return None
    lines = svg_text(picture, f"ops of {template.stats.name}", styled=False).split("\n")
    return Markup("\n".join(map(escape_controls, lines)))  # svg_text leaves control characters


def cut_slices(phases: Phases) -> list[dict[str, Any]]:
    """Returns the measured phases in their order, with their shares of all seconds and their colours.

    A phase starts where the one before it ends. Its colour is its index among all possible phases.
    """
    known, colours, found, before = phases.to_dict(), list(PHASES), [], 0.0
    total = sum(known.values()) or 1.0
    for name, seconds in known.items():
        place = {"start": before / total, "share": seconds / total, "colour": colours.index(name)}
        found.append({**encode_fields(PHASES[name]), "seconds": seconds, **place})
        before += seconds
    return found


SIDES = ("forward", "backward")

type _Place = tuple[str, int]
"""The place of a region in a row: its module within the layer, and its number among the regions of that module."""


@dataclass(frozen=True, slots=True)
class MapRow:
    """A row of the map: a layer, another module, or a line of the model itself.

    Attributes:
        label: the layer's path, the module's name, or the line.
        module: dotted path; empty for the model itself.
        sides: for each of ``SIDES`` the regions by column, None for an empty cell.
    """

    label: str
    module: str
    sides: tuple[tuple[ReportRegion | None, ...], ...]


@dataclass(frozen=True, slots=True)
class Grid:
    """The map of one compilation: a forward trace and its backward trace.

    Attributes:
        model: the compiled model; None if it is not known.
        trace_number: the number of the compilation in the run.
        titles: for each of ``SIDES`` the titles of columns: the module within a layer, empty for the layer itself.
        rows: the rows in the order in which the model runs. Rows that only backward has come last.
        regions: the number of regions.
    """

    model: str | None
    trace_number: int
    titles: tuple[tuple[str, ...], ...]
    rows: tuple[MapRow, ...]
    regions: int


def make_grids(regions: Iterable[ReportRegion]) -> tuple[Grid, ...]:
    """Returns a map for each compilation."""
    by_trace = sorted(regions, key=lambda region: (region.record.trace_number, region.number))
    return tuple(_make_grid(tuple(group)) for _, group in groupby(by_trace, lambda region: region.record.trace_number))


def _make_grid(regions: Sequence[ReportRegion]) -> Grid:
    rows: dict[tuple[str, str], list[dict[_Place, ReportRegion]]] = {}
    for side, trace in enumerate(SIDES):
        for region in regions:
            if region.record.trace == trace:
                row, inside = _split_module(region.record.source)
                cells = rows.setdefault(row, [{} for _ in SIDES])[side]
                cells[inside, sum(module == inside for module, _ in cells)] = region
    columns = [_find_columns(row[side] for row in rows.values()) for side in range(len(SIDES))]
    made = (
        MapRow(label, module, tuple(tuple(map(side.get, own)) for side, own in zip(row, columns, strict=True)))
        for (module, label), row in rows.items()
    )
    titles = tuple(tuple(inside for inside, _ in own) for own in columns)
    return Grid(regions[0].record.model, regions[0].record.trace_number, titles, tuple(made), len(regions))


def _split_module(source: Source) -> tuple[tuple[str, str], str]:
    """Returns a region's module path up to the layer's number with its label, and the rest of the path."""
    module = source.module or ""
    if source.layer is None:
        return (module, module.rpartition(".")[2] or next(map(_short, source.lines), "the model")), ""
    parts = module.split(".")
    end = next((index for index, part in enumerate(parts) if part.isdecimal()), len(parts) - 1) + 1
    path = ".".join(parts[:end])
    return (path, path), ".".join(parts[end:])


def _find_columns(rows: Iterable[Mapping[_Place, ReportRegion]]) -> list[_Place]:
    """Returns the places of regions in all rows, each once, those of the fullest rows first."""
    return list(dict.fromkeys(place for row in sorted(rows, key=len, reverse=True) for place in row))
