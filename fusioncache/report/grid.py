"""The map of a model: layers down, regions across, forward then backward; what is of no layer in rows of its own."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import batched, groupby

from fusioncache.report.contents import ReportRegion

SIDES = ("forward", "backward")
WIDEST = 16
"""Regions in a row of those that are of no layer."""

_Column = tuple[str, int]
"""The module of a region inside its layer, and which of its regions in this layer and trace it is."""
_Parts = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """A layer, or some regions outside of all layers.

    Attributes:
        label: the layer's number or the module's name.
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
        titles: for each of ``SIDES`` those of the columns, by the module inside of a layer.
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
    others: defaultdict[str, list[ReportRegion]] = defaultdict(list)
    for region in regions:
        module = region.record.source.module or ""
        if region.record.source.layer is None:
            others[module].append(region)
        else:
            layers[_layer_path(module)[0]].append(region)
    columns = [_order_columns([_assign_columns(layer, side) for layer in layers.values()]) for side in SIDES]
    widths = [_width(of_layers, others.values(), side) for of_layers, side in zip(columns, SIDES, strict=True)]
    titles = tuple(
        tuple(name for name, _ in of_layers) + ("",) * (width - len(of_layers))
        for of_layers, width in zip(columns, widths, strict=True)
    )
    blocks = [*_layer_blocks(layers, columns, widths), *_other_blocks(others, widths)]
    ordered = tuple(block for _, block in sorted(blocks, key=lambda item: item[0]))
    return Grid(regions[0].record.model, regions[0].record.trace_number, titles, ordered, len(regions))


def _layer_path(module: str) -> tuple[_Parts, str]:
    """Returns the path up to the layer's number, and the rest."""
    parts = module.split(".")
    end = next((index for index, part in enumerate(parts) if part.isdecimal()), len(parts) - 1) + 1
    return tuple(parts[:end]), ".".join(parts[end:])


def _assign_columns(regions: Iterable[ReportRegion], side: str) -> dict[_Column, ReportRegion]:
    """Returns a layer's regions on one side, by the columns where they belong."""
    seen: Counter[str] = Counter()
    keyed = {}
    for region in regions:
        if region.record.trace == side:
            inside = _layer_path(region.record.source.module or "")[1]
            keyed[inside, seen[inside]] = region
            seen[inside] += 1
    return keyed


def _order_columns(layers: Iterable[dict[_Column, ReportRegion]]) -> list[_Column]:
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


_Block = tuple[tuple[bool, int], tuple[Row, ...]]
"""Rows that belong together, and what to sort them by."""


def _layer_blocks(
    layers: dict[_Parts, list[ReportRegion]], columns: Sequence[Sequence[_Column]], widths: Sequence[int]
) -> Iterator[_Block]:
    """Yields a block for each list of layers."""
    one_list = len({path[:-1] for path in layers}) == 1
    ordered = sorted(layers, key=lambda path: (path[:-1], int(path[-1]) if path[-1].isdecimal() else -1))
    for _, group in groupby(ordered, lambda path: path[:-1]):
        paths = list(group)
        rows = []
        for path in paths:
            keyed = [_assign_columns(layers[path], side) for side in SIDES]
            sides = tuple(
                _fill([of_side.get(column) for column in of_layers], width)
                for of_side, of_layers, width in zip(keyed, columns, widths, strict=True)
            )
            module = ".".join(path)
            rows.append(Row(f"layer {path[-1]}" if one_list else module, module, True, sides))
        yield _order(region for path in paths for region in layers[path]), tuple(rows)


def _other_blocks(others: dict[str, list[ReportRegion]], widths: Sequence[int]) -> Iterator[_Block]:
    """Yields a block for each module outside of the layers."""
    for module, regions in others.items():
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
            rows.append(Row(_name(module) if number == 0 else "", module, False, cells))
        yield _order(regions), tuple(rows)


def _name(module: str) -> str:
    return module.rpartition(".")[2] or "the model"


def _fill(cells: Sequence[ReportRegion | None], width: int) -> tuple[ReportRegion | None, ...]:
    return (*cells, *[None] * (width - len(cells)))


def _order(regions: Iterable[ReportRegion]) -> tuple[bool, int]:
    """Orders regions by the first forward one; those without one come last."""
    return min((region.record.trace != "forward", region.number) for region in regions)
