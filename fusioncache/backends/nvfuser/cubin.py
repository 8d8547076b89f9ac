"""Whether a cubin is whole. The driver is not told how long it is, and would read on behind its end."""

from __future__ import annotations

import struct

_MAGIC = b"\x7fELF\x02\x01"
"""Of 64 bits, lowest byte first."""
_HEADER = struct.Struct("<40xQ4xHHHHHH")
_SECTION = struct.Struct("<4xI16xQQ24x")
_PROGRAM = struct.Struct("<8xQ16xQ16x")
_NO_BITS = 8
_MACHINE = (190).to_bytes(2, "little")


def check_cubin(image: bytes) -> None:
    """Whether all parts of a cubin lie inside it.

    Raises:
        ValueError: if they do not, or it is none.
    """
    if not image.startswith(_MAGIC) or image[18:20] != _MACHINE or len(image) < _HEADER.size:
        raise ValueError("a cubin that is none")
    sections_at, _, program_bytes, programs, section_bytes, sections, _ = _HEADER.unpack_from(image)
    (programs_at,) = struct.unpack_from("<Q", image, 32)
    if (programs and program_bytes != _PROGRAM.size) or section_bytes != _SECTION.size:
        raise ValueError("a cubin that is none")
    parts = [(sections_at, sections * section_bytes), (programs_at, programs * program_bytes)]
    if any(offset + size > len(image) for offset, size in parts):
        raise ValueError("a cubin that is cut off")
    for number in range(sections):
        kind, offset, size = _SECTION.unpack_from(image, sections_at + number * section_bytes)
        if kind != _NO_BITS:
            parts.append((offset, size))
    for number in range(programs):
        parts.append(_PROGRAM.unpack_from(image, programs_at + number * program_bytes))
    if any(offset + size > len(image) for offset, size in parts):
        raise ValueError("a cubin that is cut off")
