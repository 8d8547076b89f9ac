"""The regions of a program as an artifact beside it, so that a run that loads the program has a map of its model too.

They are what a run has on record of them, without what is that run's alone::

    regions = JSON object: format, lines: [ [ [ file, number, library ] ] ], regions: [ region ]
    region  = { trace, position, name, digest, outcome, reason, arities, plan, ops, inputs, outputs,
                module, layer, lines }

Regions of equal layers come from the same lines, so each list of lines is there once, and a region has its number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from fusioncache.ir import strict_json
from fusioncache.ir.strict_json import Value, decode, encode
from fusioncache.record.observations import Line, RegionRecord, Source

FORMAT = 1

_TRACE = re.compile("forward|backward")
_OUTCOME = re.compile("hit|miss|bypass")
_FIELDS = ("trace", "position", "name", "digest", "outcome", "reason", "arities", "plan", "ops", "inputs", "outputs")


def encode_regions(regions: Iterable[RegionRecord]) -> bytes:
    """Returns regions of one program as bytes. Equal regions have equal bytes."""
    numbers: dict[tuple[Line, ...], int] = {}
    listed = [_encode_region(region, numbers.setdefault(region.source.lines, len(numbers))) for region in regions]
    lines = [[[line.file, line.number, line.library] for line in each] for each in numbers]
    return encode({"format": FORMAT, "lines": lines, "regions": listed})


def decode_regions(content: bytes, model: str | None, trace_number: int) -> tuple[RegionRecord, ...]:
    """Returns the regions that were encoded, as those of a run.

    Args:
        content: the bytes.
        model: that the program is for.
        trace_number: that the run gives its forward trace.

    Raises:
        ValueError: if these are no such bytes.
    """
    lines, regions = decode(content, "regions", format=FORMAT).fields("lines", "regions")
    sources = [tuple(map(_decode_line, each.items())) for each in lines.items()]
    return tuple(_decode_region(region, sources, model, trace_number) for region in regions.items())


def _encode_region(region: RegionRecord, lines: int) -> dict[str, Any]:
    where = {"module": region.source.module, "layer": region.source.layer, "lines": lines}
    return {**{name: getattr(region, name) for name in _FIELDS}, **where}


def _decode_line(value: Value) -> Line:
    file, number, library = value.items(3)
    return Line(file.text(), number.integer(), library.boolean())


def _decode_region(
    value: strict_json.Value, sources: list[tuple[Line, ...]], model: str | None, trace_number: int
) -> RegionRecord:
    fields = dict(
        zip((*_FIELDS, "module", "layer", "lines"), value.fields(*_FIELDS, "module", "layer", "lines"), strict=True)
    )
    layer, lines = fields["layer"], fields["lines"].integer(0, len(sources) - 1)
    source = Source(_text(fields["module"]), None if layer.content is None else layer.integer(), sources[lines])
    return RegionRecord(
        model=model,
        trace=fields["trace"].text(_TRACE),
        trace_number=trace_number,
        position=fields["position"].integer(),
        name=fields["name"].text(),
        digest=_text(fields["digest"]),
        outcome=fields["outcome"].text(_OUTCOME),
        reason=_text(fields["reason"]),
        arities=fields["arities"].integers(),
        plan=_text(fields["plan"]),
        source=source,
        ops=fields["ops"].integer(),
        inputs=fields["inputs"].integer(),
        outputs=fields["outputs"].integer(),
    )


def _text(value: Value) -> str | None:
    return None if value.content is None else value.text()
