"""The map of a model: layers down, regions across, forward then backward; what is of no layer in rows of its own.

A region stands in the column of its module inside the layer. Where a layer has several regions of one module, or a
region belongs to the layer itself, it stands in the column of its source line: so regions of one line are below each
other, also where a layer lacks one of them. A region of no module below the model has the row of its source line.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import batched, groupby, zip_longest

from fusioncache.cli.report_contents import ReportRegion
from fusioncache.observe.record.observations import Source

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
