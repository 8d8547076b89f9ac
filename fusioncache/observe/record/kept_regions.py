"""The regions of a program as an artifact beside it, so that a run that loads the program has a map of its model too.

They are what a run has on record of them, of the residual streams through them and of the collectives beside them,
without what is that run's alone. How a placement is written is in ``placements.py``.
Each field of regions is a list with an item for each, because a step waits while hundreds of them are read::

    regions = JSON object: format, lines: [ [ [ file, number, library ] ] ], fields,
              streams: [ [ trace, stream, sums, plan, [ [ plan, moved, alive, kernels ] ] ] ],
              placements: [ placement ]
    fields  = trace, position, name, digest, outcome, reason, arities, plan, ops, inputs, outputs, module, layer: lists,
              source: list of numbers of items of lines

Regions of equal layers come from the same lines, so each list of lines is there once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fusioncache.ir.strict_json import Value, decode, encode, is_text
from fusioncache.observe.record.observations import ChoiceRecord, Line, PlanCost, RegionRecord, Source
from fusioncache.observe.record.placements import PlacementRecord, decode_placement, list_placement

FORMAT = 3

_TRACES, _OUTCOMES = frozenset({"forward", "backward"}), frozenset({"hit", "miss", "bypass"})
_TEXTS = ("name", "trace", "outcome")
_TEXTS_OR_NONE = ("digest", "reason", "plan", "module")
_NUMBERS = ("position", "ops", "inputs", "outputs", "source")
_OF_RECORDS = ("trace", "position", "name", "digest", "outcome", "reason", "plan", "ops", "inputs", "outputs")
_FIELDS = (*_TEXTS, *_TEXTS_OR_NONE, *_NUMBERS, "layer", "arities")


@dataclass(frozen=True, slots=True)
class KeptRegions:
    """What a run has on record of one program.

    Attributes:
        regions: of its traces.
        choices: what was chosen for each residual stream.
        placements: where the collectives of its traces are.
    """

    regions: tuple[RegionRecord, ...]
    choices: tuple[ChoiceRecord, ...]
    placements: tuple[PlacementRecord, ...]


def encode_regions(
    regions: Iterable[RegionRecord], choices: Iterable[ChoiceRecord], placements: Iterable[PlacementRecord] = ()
) -> bytes:
    """Returns regions, streams and placements of one program as bytes. Equal ones have equal bytes."""
    listed = tuple(regions)
    numbers: dict[tuple[Line, ...], int] = {}
    sources = [numbers.setdefault(region.source.lines, len(numbers)) for region in listed]
    columns = {name: [_clean(getattr(region, name)) for region in listed] for name in (*_OF_RECORDS, "arities")}
    where = {name: [_clean(getattr(region.source, name)) for region in listed] for name in ("module", "layer")}
    lines = [[[_clean(line.file), line.number, line.library] for line in each] for each in numbers]
    streams = list(map(_list_choice, choices))
    beside = {"source": sources, "streams": streams, "placements": list(map(list_placement, placements))}
    return encode({"format": FORMAT, "lines": lines, **columns, **where, **beside})


def _clean(value: Any) -> Any:
    """Returns a text without lone surrogates, as a name of a file may have: no reader takes them."""
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value


def _list_choice(choice: ChoiceRecord) -> list[object]:
    costs = [[cost.plan, cost.moved, cost.alive, cost.kernels] for cost in choice.costs]
    return [choice.trace, choice.stream, choice.sums, choice.plan, costs]


def decode_regions(content: bytes, model: str | None, trace_number: int) -> KeptRegions:
    """Returns what was encoded, as that of a run.

    Args:
        content: the bytes.
        model: that the program is for.
        trace_number: that the run gives its forward trace.

    Raises:
        ValueError: if these are no such bytes.
    """
    beside = ("lines", "streams", "placements")
    lines, streams, placements, *columns = decode(content, "regions", format=FORMAT).fields(*beside, *_FIELDS)
    sources = [tuple(map(_decode_line, each.items())) for each in lines.items()]
    count = len(columns[0].items())
    fields = {name: _check_column(name, column, count) for name, column in zip(_FIELDS, columns, strict=True)}
    if not all(number < len(sources) for number in fields["source"]):
        raise ValueError("regions.source has the number of no lines")
    regions = (
        _make_region({name: fields[name][index] for name in _FIELDS}, sources, model, trace_number)
        for index in range(count)
    )
    choices = (_decode_choice(each, model, trace_number) for each in streams.items())
    placed = (decode_placement(each, model, trace_number) for each in placements.items())
    return KeptRegions(tuple(regions), tuple(choices), tuple(placed))


def _decode_choice(value: Value, model: str | None, trace_number: int) -> ChoiceRecord:
    trace, stream, sums, plan, costs = value.items(5)
    if trace.text() not in _TRACES:
        raise trace.error("forward or backward")
    found = tuple(map(_decode_cost, costs.items()))
    return ChoiceRecord(model, trace.text(), trace_number, stream.text(), sums.integer(), plan.text(), found)


def _decode_cost(value: Value) -> PlanCost:
    plan, *numbers = value.items(4)
    return PlanCost(plan.text(), *(number.integer() for number in numbers))


def _decode_line(value: Value) -> Line:
    file, number, library = value.items(3)
    return Line(file.text(), number.integer(), library.boolean())


def _check_column(name: str, column: Value, count: int) -> list[Any]:
    """Returns the items of a field of all regions.

    Raises:
        ValueError: if one of them is not of the field's type.
    """
    items = column.content
    if type(items) is not list or len(items) != count:
        raise column.error(f"a list of {count}")
    if name == "arities":
        fits = all(type(each) is list and all(map(_is_count, each)) for each in items)
    elif name in _NUMBERS:
        fits = all(map(_is_count, items))
    elif name == "layer":
        fits = all(each is None or _is_count(each) for each in items)
    else:
        fits = all(is_text(each) or (each is None and name in _TEXTS_OR_NONE) for each in items)
    known = {"trace": _TRACES, "outcome": _OUTCOMES}.get(name)
    if not fits or (known is not None and not known.issuperset(items)):
        raise column.error("a list of what such a field has")
    return items


def _is_count(item: object) -> bool:
    return type(item) is int and 0 <= item < 1 << 63


def _make_region(
    fields: Mapping[str, Any], sources: list[tuple[Line, ...]], model: str | None, trace_number: int
) -> RegionRecord:
    return RegionRecord(
        model=model,
        trace_number=trace_number,
        arities=tuple(fields["arities"]),
        source=Source(fields["module"], fields["layer"], sources[fields["source"]]),
        **{name: fields[name] for name in _OF_RECORDS},
    )
