"""A program's regions as an artifact of its store entry, so that a run that loads the program can map its model, too.

The artifact has a run's records of the regions, of the residual streams through them and of the collectives beside
them, without fields that only that run has: see ``ir/codec.py`` for the format. Regions of equal layers have the same
source lines, so each list of lines is stored once.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fusioncache.ir import codec
from fusioncache.observe.record.observations import ChoiceRecord, Line, PlacementRecord, Record, RegionRecord

FORMAT = 4
_MOST_BYTES = 64 << 20
"""Limit of one text or trace; a longer one counts as damaged."""


@dataclass(frozen=True, slots=True)
class ProgramRecords:
    """The records of one program.

    Attributes:
        regions: of its traces.
        choices: the plan of each residual stream.
        placements: the positions of the collectives of its traces.
    """

    regions: tuple[RegionRecord, ...] = ()
    choices: tuple[ChoiceRecord, ...] = ()
    placements: tuple[PlacementRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class _Artifact:
    """The encoded form: sources of regions have no lines, but an index into one list of all lines."""

    kept: ProgramRecords
    lines: tuple[tuple[Line, ...], ...] = ()
    places: tuple[int, ...] = ()

    def validate(self) -> None:
        if len(self.places) != len(self.kept.regions) or not all(place < len(self.lines) for place in self.places):
            raise ValueError("regions with the places of no lines")


def encode_regions(
    regions: Iterable[RegionRecord], choices: Iterable[ChoiceRecord], placements: Iterable[PlacementRecord] = ()
) -> bytes:
    """Returns regions, streams and placements of one program as bytes, without their model and trace number.

    Equal records have equal bytes.
    """
    return _encode(ProgramRecords(_unmark(regions), _unmark(choices), _unmark(placements)))


def _unmark[T: Record](records: Iterable[T]) -> tuple[T, ...]:
    return tuple(replace(each, model=None, trace_number=0) for each in records)


def pack_trace(regions: Sequence[RegionRecord]) -> bytes:
    """Returns the regions of one trace in compressed form."""
    return zlib.compress(_encode(ProgramRecords(tuple(regions))))


def unpack_trace(content: bytes) -> tuple[RegionRecord, ...]:
    """Returns the regions of a compressed trace.

    Raises:
        ValueError: if the bytes are invalid.
    """
    return decode_regions(unpack(content)).regions


def unpack(content: bytes) -> bytes:
    """Returns decompressed bytes.

    Raises:
        ValueError: if the bytes are not compressed data, or decompress to far too many.
    """
    try:
        unpacking = zlib.decompressobj()
        found = unpacking.decompress(content, _MOST_BYTES)
    except (zlib.error, TypeError) as error:
        raise ValueError(f"what was compressed is damaged: {error}") from error
    if not unpacking.eof:
        raise ValueError("it is too long, or cut off")
    return found


def _encode(kept: ProgramRecords) -> bytes:
    lines: dict[tuple[Line, ...], int] = {}
    places = tuple(lines.setdefault(region.source.lines, len(lines)) for region in kept.regions)
    regions = tuple(replace(region, source=replace(region.source, lines=())) for region in kept.regions)
    return encode_record(_Artifact(replace(kept, regions=regions), tuple(lines), places), format=FORMAT)


def decode_regions(content: bytes) -> ProgramRecords:
    """Returns the decoded records.

    Raises:
        ValueError: if the bytes are invalid.
    """
    found = codec.decode(_Artifact, content, "regions", format=FORMAT)
    regions = (
        replace(region, source=replace(region.source, lines=found.lines[place]))
        for region, place in zip(found.kept.regions, found.places, strict=True)
    )
    return replace(found.kept, regions=tuple(regions))


def encode_record(value: Any, **marks: int) -> bytes:
    """Returns a dataclass as JSON, as ``codec.encode`` does. Strings need not be valid Unicode."""
    content = codec.encode(value, **marks)
    return json.dumps(_escape(json.loads(content)), separators=(",", ":")).encode() if rb"\ud" in content else content


def _escape(content: Any) -> Any:
    """Returns JSON with lone surrogates escaped, which file names may contain but readers reject."""
    if isinstance(content, str):
        return content.encode(errors="backslashreplace").decode()
    if isinstance(content, dict):
        return {_escape(name): _escape(item) for name, item in content.items()}
    return [*map(_escape, content)] if isinstance(content, list) else content
