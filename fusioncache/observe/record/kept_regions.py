"""The regions of a program as an artifact beside it, so that a run that loads the program has a map of its model too.

They are what a run has on record of them, of the residual streams through them and of the collectives beside them,
without what is that run's alone: see ``ir/codec.py`` for the format. Regions of equal layers come from the same lines,
so each list of lines is there once.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fusioncache.ir import codec, strict_json
from fusioncache.observe.record.observations import ChoiceRecord, Line, PlacementRecord, RegionRecord

FORMAT = 4
_MOST_BYTES = 64 << 20
"""Of one text or trace: what says that it is longer is damaged."""


@dataclass(frozen=True, slots=True)
class KeptRegions:
    """What a run has on record of one program.

    Attributes:
        regions: of its traces.
        choices: what was chosen for each residual stream.
        placements: where the collectives of its traces are.
    """

    regions: tuple[RegionRecord, ...] = ()
    choices: tuple[ChoiceRecord, ...] = ()
    placements: tuple[PlacementRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class _Artifact:
    """What is written: without lines in the regions' sources, but with the place of these in a list of all lines."""

    kept: KeptRegions
    lines: tuple[tuple[Line, ...], ...] = ()
    places: tuple[int, ...] = ()

    def validate(self) -> None:
        if len(self.places) != len(self.kept.regions) or not all(place < len(self.lines) for place in self.places):
            raise ValueError("regions with the places of no lines")


def encode_regions(
    regions: Iterable[RegionRecord], choices: Iterable[ChoiceRecord], placements: Iterable[PlacementRecord] = ()
) -> bytes:
    """Returns regions, streams and placements of one program as bytes. Equal ones have equal bytes."""
    return _encode(KeptRegions(_mark(regions), _mark(choices), _mark(placements)))


def decode_regions(content: bytes, model: str | None, trace_number: int) -> KeptRegions:
    """Returns what was encoded, as that of a run.

    Args:
        content: the bytes.
        model: that the program is for.
        trace_number: that the run gives its forward trace.

    Raises:
        ValueError: if these are no such bytes.
    """
    found, run = _decode(content), (model, trace_number)
    return KeptRegions(_mark(found.regions, *run), _mark(found.choices, *run), _mark(found.placements, *run))


def _mark[T: (RegionRecord, ChoiceRecord, PlacementRecord)](
    records: Iterable[T], model: str | None = None, trace_number: int = 0
) -> tuple[T, ...]:
    """Returns records as those of a trace of a run, by default of none."""
    return tuple(replace(each, model=model, trace_number=trace_number) for each in records)


def pack_trace(regions: Sequence[RegionRecord]) -> bytes:
    """Returns the regions of one trace as few bytes."""
    return zlib.compress(_encode(KeptRegions(tuple(regions))))


def unpack_trace(content: bytes) -> tuple[RegionRecord, ...]:
    """Returns the regions that were packed.

    Raises:
        ValueError: if these are no such bytes.
    """
    return _decode(unpack(content)).regions


def unpack(content: bytes) -> bytes:
    """Returns what was compressed.

    Raises:
        ValueError: if it is nothing compressed, or far too long.
    """
    try:
        unpacking = zlib.decompressobj()
        found = unpacking.decompress(content, _MOST_BYTES)
    except (zlib.error, TypeError) as error:
        raise ValueError(f"what was compressed is damaged: {error}") from error
    if not unpacking.eof:
        raise ValueError("it is too long, or cut off")
    return found


def _encode(kept: KeptRegions) -> bytes:
    lines: dict[tuple[Line, ...], int] = {}
    places = tuple(lines.setdefault(region.source.lines, len(lines)) for region in kept.regions)
    regions = tuple(replace(region, source=replace(region.source, lines=())) for region in kept.regions)
    return encode_record(_Artifact(replace(kept, regions=regions), tuple(lines), places), format=FORMAT)


def _decode(content: bytes) -> KeptRegions:
    found = codec.decode(_Artifact, content, "regions", format=FORMAT)
    regions = (
        replace(region, source=replace(region.source, lines=found.lines[place]))
        for region, place in zip(found.kept.regions, found.places, strict=True)
    )
    return replace(found.kept, regions=tuple(regions))


def encode_record(value: Any, **marks: int) -> bytes:
    """Returns a dataclass as JSON, as ``codec.encode`` does. Texts need not be valid Unicode."""
    content = codec.encode(value, **marks)
    return strict_json.encode(_escape(json.loads(content))) if rb"\ud" in content else content


def _escape(content: Any) -> Any:
    """Returns JSON without lone surrogates, as a name of a file may have: no reader takes them."""
    if isinstance(content, str):
        return content.encode(errors="backslashreplace").decode()
    if isinstance(content, dict):
        return {_escape(name): _escape(item) for name, item in content.items()}
    return [*map(_escape, content)] if isinstance(content, list) else content
