"""A recipe with every kind of part, for tests of stored nvFuser kernels."""

import struct

from fusioncache.backends.nvfuser.recipe import Duplicate, Fill, Fresh, Input, Launch, Layout, Pointer, Recipe, View

FLAT = Layout("float32", (4, 8), (8, 1))
NAME = "_ZN3nvf30nvfuser_pointwise_f0_c1_r0_g0E"


def make_launch(**changes):
    given = {
        "cubin": "0.cubin",
        "function": NAME,
        "grid": (7, 2, 1),
        "block": (128, 1, 1),
        "shared": 16,
        "most_shared": 49152,
        "cooperative": True,
        "parameters": (bytes(8) + b"\x04\0\0\0\x08\0\0\0", bytes(24), b"\x05"),
        "pointers": (Pointer(0, 0, 0, 0), Pointer(1, 8, 2, 64)),
    }
    return Launch(**{**given, **changes})


RECIPE = Recipe(
    inputs=(Input(FLAT, 16), Input(Layout("bfloat16", (8,), (1,)), 2)),
    allocations=(128, 512),
    outputs=(Fresh(FLAT, 0, 0), View(Layout("float32", (8,), (1,)), 0, 8, False), Duplicate(0), Fresh(FLAT, 1, 128)),
    steps=(Fill(3, 0, 256, 0), make_launch()),
    widest=16,
)


def pack_words(*numbers):
    return b"".join(number.to_bytes(8, "little") for number in numbers)


def make_elf(machine=190, sections=((1, 64, 16), (8, 64, 10**6)), programs=((64, 16),)):
    """Returns an ELF file with these sections and program headers, and 32 bytes of contents."""
    header = bytearray(64)
    header[:6] = b"\x7fELF\x02\x01"
    header[18:20] = machine.to_bytes(2, "little")
    struct.pack_into("<QQ", header, 32, 96, 96 + 56 * len(programs))
    struct.pack_into("<HHHHH", header, 52, 64, 56, len(programs), 64, len(sections))
    body = bytes(32)
    for offset, size in programs:
        body += struct.pack("<8xQ16xQ16x", offset, size)
    for kind, offset, size in sections:
        body += struct.pack("<4xI16xQQ24x", kind, offset, size)
    return bytes(header) + body
