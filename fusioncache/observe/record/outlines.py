"""What is the same at each length of a model, apart from what is not: templates are the same but for their numbers.

The text of a template is cut into a *shape*, in which no number stands, and its numbers. The first text of a shape is
its outline; of later ones only the numbers that differ from it are written. The regions of a trace are written as those
that are kept with a program (``kept_regions.py``), with the places of their templates in a list in place of digests.
Both are compressed.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count

from fusioncache.observe.record.kept_regions import decode_regions, encode_regions
from fusioncache.observe.record.observations import RegionRecord

_NUMBER = re.compile(r"\d+")
_MOST_BYTES = 64 << 20
"""Of one outline: what says that it is longer is damaged."""


@dataclass(frozen=True, slots=True)
class CutText:
    """A text and its numbers.

    Attributes:
        shape: the digest of its shape.
        text: the whole text. It is JSON, which has no character 0.
    """

    shape: str
    text: str

    @classmethod
    def cut(cls, text: str) -> CutText:
        """Cuts a text."""
        return cls(hashlib.sha256(_NUMBER.sub("\0", text).encode()).hexdigest(), text)

    def pack(self) -> bytes:
        """Returns the text as the outline of all that have its shape."""
        return zlib.compress(self.text.encode())

    def list_numbers(self, outline: bytes) -> str:
        """Returns the numbers in which it differs from an outline of the same shape, each with its places."""
        places = defaultdict[str, list[int]](list)
        pairs = zip(_NUMBER.findall(self.text), _NUMBER.findall(unpack(outline)), strict=True)
        for place, (own, other) in enumerate(pairs):
            if own != other:
                places[own].append(place)
        return json.dumps(places, separators=(",", ":"))


def fill_text(outline: bytes, numbers: str) -> str:
    """Returns the text that has these numbers in which it differs from an outline.

    Raises:
        ValueError: if they are no such numbers, or it is no outline.
    """
    text, listed = unpack(outline), json.loads(numbers)
    try:
        own = {place: number for number, places in listed.items() for place in places}
    except (AttributeError, TypeError) as error:
        raise ValueError(f"{numbers[:60]} are no numbers") from error
    places = count()
    return _NUMBER.sub(lambda found: own.get(next(places), found[0]), text)


@dataclass(frozen=True, slots=True)
class CutRegions:
    """The regions of a trace, and of its backward trace.

    Attributes:
        shape: the digest of what is the same in traces that differ in their templates alone.
        content: that, packed.
        templates: the digests of their templates, in the order in which they are met.
    """

    shape: str
    content: bytes
    templates: tuple[str, ...]

    @classmethod
    def cut(cls, regions: Sequence[RegionRecord]) -> CutRegions:
        """Cuts the regions of one trace."""
        places: dict[str, str] = {}
        for region in regions:
            if region.digest is not None:
                places.setdefault(region.digest, str(len(places)))
        placed = (replace(each, digest=None if each.digest is None else places[each.digest]) for each in regions)
        content = encode_regions(placed, ())
        return cls(hashlib.sha256(content).hexdigest(), zlib.compress(content), tuple(places))


def fill_regions(
    outline: bytes, templates: Sequence[str], model: str | None, trace_number: int
) -> tuple[RegionRecord, ...]:
    """Returns the regions of a trace.

    Args:
        outline: of it.
        templates: the digests of their templates.
        model: that the trace is of.
        trace_number: of the run.

    Raises:
        ValueError: if it is no outline, or a template is missing.
    """
    kept = decode_regions(unpack(outline).encode(), model, trace_number).regions
    if not all(region.digest is None or region.digest in map(str, range(len(templates))) for region in kept):
        raise ValueError("a region has a template that is not there")
    return tuple(each if each.digest is None else replace(each, digest=templates[int(each.digest)]) for each in kept)


def unpack(content: bytes) -> str:
    """Returns a text that was compressed.

    Raises:
        ValueError: if it is none, or far too long.
    """
    try:
        unpacking = zlib.decompressobj()
        text = unpacking.decompress(content, _MOST_BYTES)
        if not unpacking.eof:
            raise ValueError("it is too long, or cut off")
        return text.decode()
    except (zlib.error, TypeError) as error:
        raise ValueError(f"what was compressed is damaged: {error}") from error
