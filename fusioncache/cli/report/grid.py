"""The map of a model: layers down, regions across, forward then backward; what is of no layer in rows of its own.

A region stands in the column of its module inside the layer. Where a layer has several regions of one module, or a
region belongs to the layer itself, it stands in the column of its source line: so regions of one line are below each
other, also where a layer lacks one of them. A region of no module below the model has the row of its source line.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import batched, groupby

from fusioncache.cli.report.contents import ReportRegion
from fusioncache.observe.record.observations import Source

SIDES = ("forward", "backward")
WIDEST = 16
"""Regions in a row of those that are of no layer."""

MOST_LAYERS = 4096
"""A longer list of layers has no rows for those that no region is of."""

_Parts = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Column:
    """Where in a layer a region belongs.

    Attributes:
        module: of the region, inside of its layer; empty for the layer itself.
        line: of the source, where the module does not tell its regions apart; else empty.
        number: which of the layer's regions of this module and line it is.
    """

    module: str
    line: str
    number: int

    @property
    def title(self) -> str:
        """What stands above the column."""
        return " ".join(part for part in (self.module, self.line) if part)


@dataclass(frozen=True, slots=True)
class Row:
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
    blocks: tuple[tuple[Row, ...], ...]
    regions: int


def make_grids(regions: Iterable[ReportRegion]) -> tuple[Grid, ...]:
    """Makes a map for each compilation."""
    by_trace = sorted(regions, key=lambda region: (region.record.trace_number, region.number))
    return tuple(_make_grid(tuple(group)) for _, group in groupby(by_trace, lambda region: region.record.trace_number))


def _make_grid(regions: Sequence[ReportRegion]) -> Grid:
    layers: defaultdict[_Parts, list[ReportRegion]] = defaultdict(list)
    others: defaultdict[tuple[str, str], list[ReportRegion]] = defaultdict(list)
    for region in regions:
        module = region.record.source.module or ""
        if region.record.source.layer is None:
            others[module, "" if module else name_line(region.record.source)].append(region)
        else:
            layers[_layer_path(module)[0]].append(region)
    assigned = [_assign_columns(layers, side) for side in SIDES]
    columns = [_order_columns(of_side.values()) for of_side in assigned]
    widths = [_width(of_layers, others.values(), side) for of_layers, side in zip(columns, SIDES, strict=True)]
    titles = tuple(
        tuple(column.title for column in of_layers) + ("",) * (width - len(of_layers))
        for of_layers, width in zip(columns, widths, strict=True)
    )
    blocks = [*_layer_blocks(layers, assigned, columns, widths), *_other_blocks(others, widths)]
    ordered = tuple(block for _, block in sorted(blocks, key=lambda item: item[0]))
    return Grid(regions[0].record.model, regions[0].record.trace_number, titles, ordered, len(regions))


def _layer_path(module: str) -> tuple[_Parts, str]:
    """Returns the path up to the layer's number, and the rest."""
    parts = module.split(".")
    end = next((index for index, part in enumerate(parts) if part.isdecimal()), len(parts) - 1) + 1
    return tuple(parts[:end]), ".".join(parts[end:])


def name_line(source: Source) -> str:
    """Names the first line of a region, a user's before a library's, such as ``model.py:31``; empty if none."""
    for line in source.lines:
        return f"{line.file.replace('\\', '/').rpartition('/')[2]}:{line.number}"
    return ""


def _assign_columns(layers: Mapping[_Parts, Sequence[ReportRegion]], side: str) -> _Assigned:
    """Returns for each layer its regions on one side, by the columns where they belong."""
    inside = {
        path: [_find_module(region) for region in layer if region.record.trace == side]
        for path, layer in layers.items()
    }
    several = {module for modules in inside.values() for module, times in Counter(modules).items() if times > 1} | {""}
    assigned: dict[_Parts, dict[_Column, ReportRegion]] = {}
    for path, layer in layers.items():
        seen: Counter[tuple[str, str]] = Counter()
        assigned[path] = {}
        for region in layer:
            if region.record.trace == side:
                module = _find_module(region)
                line = name_line(region.record.source) if module in several else ""
                assigned[path][_Column(module, line, seen[module, line])] = region
                seen[module, line] += 1
    return assigned


def _find_module(region: ReportRegion) -> str:
    """Returns the module of a region inside of its layer."""
    return _layer_path(region.record.source.module or "")[1]


def _order_columns(layers: Iterable[Mapping[_Column, ReportRegion]]) -> list[_Column]:
    """Returns the columns of all layers, each after the one before it in a layer, from the fullest layer on."""
    order: list[_Column] = []
    for layer in sorted(layers, key=len, reverse=True):
        index = 0
        for column in layer:
            if column not in order:
                order.insert(index, column)
            index = order.index(column) + 1
    return order


def _width(columns: Sequence[_Column], others: Iterable[Sequence[ReportRegion]], side: str) -> int:
    """Returns how many cells a side has across."""
    outside = max((sum(region.record.trace == side for region in group) for group in others), default=0)
    return max(len(columns), min(outside, WIDEST))


_Assigned = Mapping[_Parts, Mapping[_Column, ReportRegion]]
"""For each layer its regions by their columns."""
_Block = tuple[tuple[bool, int], tuple[Row, ...]]
"""Rows that belong together, and what to sort them by."""


def _layer_blocks(
    layers: Mapping[_Parts, Sequence[ReportRegion]],
    assigned: Sequence[_Assigned],
    columns: Sequence[Sequence[_Column]],
    widths: Sequence[int],
) -> Iterator[_Block]:
    """Yields a block for each list of layers, with a row for each layer, also for one that no region is of."""
    one_list = len({path[:-1] for path in layers}) == 1
    for start, group in groupby(sorted(layers, key=_sort_layers), lambda path: path[:-1]):
        paths = list(group)
        rows = []
        for path in _add_missing(start, paths):
            cells = [of_side.get(path, {}) for of_side in assigned]
            sides = tuple(
                _fill([of_layer.get(column) for column in of_side], width)
                for of_layer, of_side, width in zip(cells, columns, widths, strict=True)
            )
            module = ".".join(path)
            rows.append(Row(f"layer {path[-1]}" if one_list else module, module, True, sides))
        yield _order(region for path in paths for region in layers[path]), tuple(rows)


def _sort_layers(path: _Parts) -> tuple[_Parts, int]:
    return path[:-1], int(path[-1]) if path[-1].isdecimal() else -1


def _add_missing(start: _Parts, paths: Sequence[_Parts]) -> Sequence[_Parts]:
    """Returns these layers and those between them: the operations of one may be in regions of its neighbours."""
    first, last = (_sort_layers(path)[1] for path in (paths[0], paths[-1]))
    if first < 0 or last - first >= MOST_LAYERS:
        return paths
    return [(*start, str(number)) for number in range(first, last + 1)]


def _other_blocks(others: Mapping[tuple[str, str], Sequence[ReportRegion]], widths: Sequence[int]) -> Iterator[_Block]:
    """Yields a block for each module, or line of the model itself, outside of the layers."""
    for (module, line), regions in others.items():
        sides = [
            list(batched((region for region in regions if region.record.trace == side), width or 1))
            for side, width in zip(SIDES, widths, strict=True)
        ]
        rows = []
        for number in range(max(map(len, sides))):
            cells = tuple(
                _fill(side[number] if number < len(side) else (), width)
                for side, width in zip(sides, widths, strict=True)
            )
            label = module.rpartition(".")[2] or line or "the model"
            rows.append(Row(label if number == 0 else "", module, False, cells))
        yield _order(regions), tuple(rows)


def _fill(cells: Sequence[ReportRegion | None], width: int) -> tuple[ReportRegion | None, ...]:
    return (*cells, *[None] * (width - len(cells)))


def _order(regions: Iterable[ReportRegion]) -> tuple[bool, int]:
    """Orders regions by the first forward one; those without one come last."""
    return min((region.record.trace != "forward", region.number) for region in regions)
