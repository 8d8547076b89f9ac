"""Which regions of other sizes a region was generalized with, as it is stored beside code that was made of that."""

from __future__ import annotations

from dataclasses import dataclass

from fusioncache.ir import Graph, codec
from fusioncache.ir.template import FORMAT

RELATIVES = "relatives"
"""The artifact that says it."""


@dataclass(frozen=True, slots=True)
class _Relatives:
    """Regions with one skeleton."""

    regions: tuple[Graph, ...]


def encode_relatives(regions: tuple[Graph, ...]) -> bytes:
    """Returns regions of other sizes as JSON."""
    return codec.encode(_Relatives(regions), format=FORMAT)


def decode_relatives(content: bytes | str) -> tuple[Graph, ...]:
    """Returns the regions that were encoded.

    Raises:
        ValueError: if the content is anything else, or of another format.
    """
    return codec.decode(_Relatives, content, "relatives", format=FORMAT).regions
