"""The command report: a run as one HTML file that needs no other one and no network, or as JSON."""

from __future__ import annotations

import base64
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from importlib.resources import files
from itertools import batched, groupby, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fusioncache.cli.comparison import explain_templates
from fusioncache.cli.console import encode_fields, json_option, print_json, run_option, write_file
from fusioncache.cli.listings import picture_of, svg_text
from fusioncache.cli.overview import encode_run
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
    add_up_owners,
    find_whole_models,
)
from fusioncache.observe.record.stats import TemplateStats, find_bypasses, find_not_given
from fusioncache.template.text import read_exactly, read_inputs

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

_FILE = Path("fusioncache-report.html")
_LOOKED_AT = 1000
"""Characters of a file in which a report says that it is one."""


@click.command()
@run_option
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=_FILE,
    help=f"The file to write, {_FILE} by default.",
)
@click.option("--open", "open_", is_flag=True, help="Open it in the browser.")
@click.option("-y", "--force", is_flag=True, help="Overwrite a file that is no report.")
@json_option
def report(run_id: str | None, output: Path, open_: bool, force: bool, as_json: bool) -> None:
    """Write a run as one HTML file that needs no network.

    It shows what was shared on a map of the model, each template with its ops, why each miss was one, what was left
    out, where the time went, and what was chosen for the residual streams. With --json it prints what the report is
    made of, and writes no file.

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
    if not force and output.exists():
        _check_report(output)
    from fusioncache.cli.report import render_report

    write_file(output, render_report(found).encode())
    if open_:
        click.launch(output.absolute().as_uri())


def _check_report(path: Path) -> None:
    """Makes sure that no file is lost that is no report.

    Raises:
        click.ClickException: if this is none.
    """
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            start = file.read(_LOOKED_AT)
    except OSError as error:
        raise click.ClickException(f"{path} cannot be read ({error.strerror}): give another path with -o") from error
    if start and f'content="{GENERATOR}"' not in start:
        raise click.ClickException(f"{path} is there and is no report: give another -o, or --force to overwrite it")


def _encode(contents: Contents) -> dict[str, Any]:
    """Returns what a report is made of, for JSON."""
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
        **{"run": encode_run(contents.run), "models": contents.models, "environment": contents.environment},
        **{"templates": templates, "regions": regions, "misses": misses},
        **{"choices": contents.choices, "placements": contents.placements},
    }


GENERATOR = "fusioncache report"
"""A file that says so in its head is a report."""


@dataclass(frozen=True, slots=True)
class ReportRegion:
    """A region in the report.

    Attributes:
        number: its position among all regions of the run, from 0.
        record: what is recorded of it.
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
        stats: what is recorded of it.
        regions: the regions that have it, in their order.
        colour: counts the templates that several regions have, by their first regions, from 0; None if only one has it.
    """

    number: int
    stats: TemplateStats
    regions: tuple[ReportRegion, ...]
    colour: int | None

    @property
    def is_general(self) -> bool:
        """Whether code for any sizes serves a region of it, rather than code for its own."""
        return any(region.record.plan == ANY_SIZES for region in self.regions)


@dataclass(frozen=True, slots=True)
class Contents:
    """Everything that a report says.

    Attributes:
        run: which, with its counts and phases.
        templates: its templates, the most expensive first.
        regions: its regions, in the order of its traces.
        choices: what was chosen for its residual streams.
        placements: where the collectives of its traces are.
    """

    run: Run
    templates: tuple[ReportTemplate, ...]
    regions: tuple[ReportRegion, ...]
    choices: tuple[ChoiceRecord, ...]
    placements: tuple[PlacementRecord, ...] = ()

    @property
    def models(self) -> tuple[str, ...]:
        """The models that were compiled or loaded, in their order."""
        return self.run.models or tuple(
            dict.fromkeys(region.record.model for region in self.regions if region.record.model)
        )

    @property
    def whole_models(self) -> tuple[str, ...]:
        """The same without their parts."""
        return find_whole_models(self.models)

    @property
    def environment(self) -> dict[str, tuple[str, ...]]:
        """What the templates were compiled for: each ingredient that says nothing of a graph, with its texts."""
        found: dict[str, dict[str, None]] = {"device": {}}
        for template in self.templates:
            found["device"] |= dict.fromkeys(_devices(template.stats.texts.get("inputs", "")))
            for name, text in template.stats.ingredients:
                if name not in GRAPH:
                    found.setdefault(name, {})[text] = None
        return {name: tuple(texts) for name, texts in found.items() if texts}

    @property
    def met(self) -> tuple[ReportTemplate, ...]:
        """The templates in the order in which the run met them. Those without a region on record come last."""
        last = len(self.regions)
        return tuple(sorted(self.templates, key=lambda each: min((one.number for one in each.regions), default=last)))

    def template(self, number: int | None) -> ReportTemplate | None:
        """Returns the template with this number."""
        return None if number is None else self.templates[number - 1]


def read_contents(record: RecordReader, run: Run) -> Contents:
    """Reads what the record has of a run."""
    templates = record.templates(run.id)
    numbers = {template.digest: number for number, template in enumerate(templates, 1)}
    regions = tuple(
        ReportRegion(number, region, numbers.get(region.digest) if region.digest else None)
        for number, region in enumerate(record.regions(run.id))
    )
    of: defaultdict[int | None, list[ReportRegion]] = defaultdict(list)
    for region in regions:
        of[region.template].append(region)
    # A region may have had no room in the record, and its template is there all the same: that one comes last.
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
    """Writes the report. It is the same for the same contents, to the letter."""
    from markupsafe import Markup

    met = contents.met
    style, script = _read_page("page.css"), _read_page("page.js")
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
            owners=add_up_owners(contents.run.phases.to_dict()),
            not_given=find_not_given(contents.run.stats.bypasses),
            bypasses=find_bypasses(contents.run.stats.bypasses),
            style=Markup(style),
            style_hash=_hash(style),
            script=Markup(script),
            script_hash=_hash(script),
        )
    )


def make_environment() -> Environment:
    """Returns where the pages are, with all that they need. It escapes everything."""
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
    }
    return pages


def _printable(value: Any) -> Any:
    """Removes control characters, which have no place in HTML. Markup of our own stays as it is."""
    return value if hasattr(value, "__html__") else escape_controls(str(value))


def _read_page(name: str) -> str:
    return files("fusioncache.cli").joinpath("page", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """Returns a digest in the form in which a content security policy names what may run."""
    return base64.b64encode(sha256(text.encode()).digest()).decode()


def _moment(seconds: float) -> str:
    """Formats a moment in UTC, because the file may be read anywhere."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _percent(share: float) -> str:
    if 0 < share < 0.0005:
        return "< 0.1%"
    return f"{share:.0%}" if share >= 0.0995 or share == 0 else f"{share:.1%}"


def _short(line: Line) -> str:
    """Names a line by the last two parts of its path, or by those inside of an installed package."""
    path = line.file.replace("\\", "/")
    inside = path.rpartition("/site-packages/")[2]
    return f"{inside if inside != path else '/'.join(path.split('/')[-2:])}:{line.number}"


def _graph(template: ReportTemplate) -> Markup | None:
    """Draws the template's graph as SVG; None if what is recorded of it cannot be read."""
    from markupsafe import Markup

    try:
        picture = picture_of(read_exactly(template.stats.texts))
    except ValueError:
        return None
    lines = svg_text(picture, f"ops of {template.stats.name}", styled=False).split("\n")
    return Markup("\n".join(map(escape_controls, lines)))  # it is escaped; control characters are left


def cut_slices(phases: Phases) -> list[dict[str, Any]]:
    """Returns the phases that were measured, in the order in which they come: their shares of all seconds, and colours.

    A phase starts where the one before it ends. Its colour is its index among all phases there can be.
    """
    known, colours, found, before = phases.to_dict(), list(PHASES), [], 0.0
    total = sum(known.values()) or 1.0
    for name, seconds in known.items():
        place = {"start": before / total, "share": seconds / total, "colour": colours.index(name)}
        found.append({**encode_fields(PHASES[name]), "seconds": seconds, **place})
        before += seconds
    return found


SIDES = ("forward", "backward")
WIDEST = 16
"""Regions in a row of those that are of no layer."""

MOST_LAYERS = 4096
"""A longer list of layers has no rows for those that no region is of."""

type _Path = tuple[str, ...]
"""The names of modules from the model to a layer, the layer's number last."""
type _Place = tuple[str, str, int]
"""Where in a layer a region belongs: its module, its line where that does not tell it apart, its number."""
type _Block = tuple[tuple[bool, int], tuple[MapRow, ...]]
"""Rows that belong together, and what to sort them by."""


@dataclass(frozen=True, slots=True)
class MapRow:
    """A layer, or some regions outside of all layers.

    Attributes:
        label: the layer's number, the module's name, or the line of a region of the model itself.
        module: dotted path; empty for the model itself.
        layered: whether it is a layer, so that the titles of the columns hold for it.
        sides: for each of ``SIDES`` the regions across, None where there is none.
    """

    label: str
    module: str
    layered: bool
    sides: tuple[tuple[ReportRegion | None, ...], ...]


@dataclass(frozen=True, slots=True)
class Grid:
    """The map of one compilation: a forward trace and the backward trace that belongs to it.

    Attributes:
        model: what was compiled; None if not known.
        trace_number: which of the run's compilations it is.
        titles: for each of ``SIDES`` those of the columns: the module inside of a layer, and the line where it matters.
        blocks: rows that belong together, in the order of the model.
        regions: how many regions there are.
    """

    model: str | None
    trace_number: int
    titles: tuple[tuple[str, ...], ...]
    blocks: tuple[tuple[MapRow, ...], ...]
    regions: int


def make_grids(regions: Iterable[ReportRegion]) -> tuple[Grid, ...]:
    """Makes a map for each compilation."""
    by_trace = sorted(regions, key=lambda region: (region.record.trace_number, region.number))
    return tuple(_make_grid(tuple(group)) for _, group in groupby(by_trace, lambda region: region.record.trace_number))


@dataclass(frozen=True, slots=True)
class _Side:
    """One trace of a map.

    Attributes:
        trace: of ``SIDES``.
        columns: the places of its regions in layers, in their order.
        cells: for each layer its regions by their places.
        width: how many cells it has across.
    """

    trace: str
    columns: Sequence[_Place]
    cells: Mapping[_Path, Mapping[_Place, ReportRegion]]
    width: int

    @property
    def titles(self) -> tuple[str, ...]:
        """What stands above the columns."""
        named = (" ".join(filter(None, (module, line))) for module, line, _ in self.columns)
        return (*named, *[""] * (self.width - len(self.columns)))

    def fill(self, cells: Sequence[ReportRegion | None]) -> tuple[ReportRegion | None, ...]:
        """Returns the cells of a row, as many as it has across."""
        return (*cells, *[None] * (self.width - len(cells)))


def _make_grid(regions: Sequence[ReportRegion]) -> Grid:
    layers: defaultdict[_Path, list[ReportRegion]] = defaultdict(list)
    others: defaultdict[tuple[str, str], list[ReportRegion]] = defaultdict(list)
    for region in regions:
        module = region.record.source.module or ""
        if region.record.source.layer is None:
            others[module, "" if module else name_line(region.record.source)].append(region)
        else:
            layers[_split_path(region)[0]].append(region)
    sides = [_make_side(trace, layers, others.values()) for trace in SIDES]
    blocks = sorted([*_list_layers(layers, sides), *_list_others(others, sides)], key=lambda item: item[0])
    first = regions[0].record
    titles = tuple(side.titles for side in sides)
    return Grid(first.model, first.trace_number, titles, tuple(rows for _, rows in blocks), len(regions))


def _split_path(region: ReportRegion) -> tuple[_Path, str]:
    """Returns the path of a region's module up to the layer's number, and the rest."""
    parts = (region.record.source.module or "").split(".")
    end = next((index for index, part in enumerate(parts) if part.isdecimal()), len(parts) - 1) + 1
    return tuple(parts[:end]), ".".join(parts[end:])


def name_line(source: Source) -> str:
    """Names the first line of a region, a user's before a library's, such as ``model.py:31``; empty if none."""
    for line in source.lines:
        return f"{line.file.replace('\\', '/').rpartition('/')[2]}:{line.number}"
    return ""


def _make_side(
    trace: str, layers: Mapping[_Path, Sequence[ReportRegion]], others: Iterable[Sequence[ReportRegion]]
) -> _Side:
    own = {path: [each for each in layer if each.record.trace == trace] for path, layer in layers.items()}
    counts = [Counter(_split_path(region)[1] for region in layer) for layer in own.values()]
    several = {module for count in counts for module, times in count.items() if times > 1} | {""}
    cells: defaultdict[_Path, dict[_Place, ReportRegion]] = defaultdict(dict)
    for path, layer in own.items():
        seen: Counter[tuple[str, str]] = Counter()
        for region in layer:
            module = _split_path(region)[1]
            line = name_line(region.record.source) if module in several else ""
            cells[path][module, line, seen[module, line]] = region
            seen[module, line] += 1
    columns = list(dict.fromkeys(place for layer in sorted(cells.values(), key=len, reverse=True) for place in layer))
    outside = max((sum(each.record.trace == trace for each in group) for group in others), default=0)
    return _Side(trace, columns, cells, max(len(columns), min(outside, WIDEST)))


def _list_layers(layers: Mapping[_Path, Sequence[ReportRegion]], sides: Sequence[_Side]) -> Iterator[_Block]:
    """Yields a block for each list of layers, with a row for each layer, also for one that no region is of."""
    one_list = len({path[:-1] for path in layers}) == 1
    for start, group in groupby(sorted(layers, key=_sort_layers), lambda path: path[:-1]):
        paths, rows = list(group), []
        for path in _add_missing(start, paths):
            cells = (side.fill([side.cells.get(path, {}).get(place) for place in side.columns]) for side in sides)
            module = ".".join(path)
            rows.append(MapRow(f"layer {path[-1]}" if one_list else module, module, True, tuple(cells)))
        yield _order(region for path in paths for region in layers[path]), tuple(rows)


def _sort_layers(path: _Path) -> tuple[_Path, int]:
    return path[:-1], int(path[-1]) if path[-1].isdecimal() else -1


def _add_missing(start: _Path, paths: Sequence[_Path]) -> Sequence[_Path]:
    """Returns these layers and those between them: the operations of one may be in regions of its neighbours."""
    first, last = (_sort_layers(path)[1] for path in (paths[0], paths[-1]))
    if first < 0 or last - first >= MOST_LAYERS:
        return paths
    return [(*start, str(number)) for number in range(first, last + 1)]


def _list_others(others: Mapping[tuple[str, str], Sequence[ReportRegion]], sides: Sequence[_Side]) -> Iterator[_Block]:
    """Yields a block for each module, or line of the model itself, outside of the layers."""
    for (module, line), regions in others.items():
        own = [[each for each in regions if each.record.trace == side.trace] for side in sides]
        parts = (batched(of_side, side.width or 1) for of_side, side in zip(own, sides, strict=True))
        label = module.rpartition(".")[2] or line or "the model"
        rows: list[MapRow] = []
        for across in zip_longest(*parts, fillvalue=()):
            cells = tuple(side.fill(part) for side, part in zip(sides, across, strict=True))
            rows.append(MapRow("" if rows else label, module, False, cells))
        yield _order(regions), tuple(rows)


def _order(regions: Iterable[ReportRegion]) -> tuple[bool, int]:
    """Orders regions by the first forward one; those without one come last."""
    return min((region.record.trace != "forward", region.number) for region in regions)
