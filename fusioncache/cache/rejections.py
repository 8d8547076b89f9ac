"""What runs a region that its compiler rejects: its halves, another compiler, or its operations one by one.

nvFuser 0.2.36 cannot compile some regions, which then fail under Thunder alone as well. In half such a region mostly
compiles. Measured on an H200 (a backward region of ConvNeXt, 62 operations): its halves take 1.1 s to compile and 42 to
59 us to run, TorchInductor 1.3 to 5.2 s and 114 to 235 us, one operation after the other 0.1 s and 383 to 424 us. So
they are tried in this order. What was found is stored under the region's key, so that the next process does not ask the
compiler for the whole again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fusioncache.backends.api import Run
from fusioncache.backends.torch_settings import is_out_of_memory
from fusioncache.ir import Graph
from fusioncache.ir.strict_json import Value, decode, encode
from fusioncache.store.entry import REFUSED
from fusioncache.template.parts import Part, cut, take

logger = logging.getLogger("fusioncache")

PIECES = "pieces"
"""The artifact that says what runs a rejected region."""
FORMAT = 1
OWN, INDUCTOR, OPERATIONS = "own", "inductor", "operations"
"""The ways to run a piece: by the compiler that rejected the whole, by TorchInductor, or one operation at a time."""
WAYS = (OWN, INDUCTOR, OPERATIONS)
LEAST_OPERATIONS = 8
"""A rejected piece with fewer operations is not cut again."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some operations of a rejected region, from ``start`` up to ``stop``, and the way to run them: see ``WAYS``."""

    start: int
    stop: int
    way: str


class RejectedRegion(Exception):
    """A compiler rejects a region, or what it made of it does not run.

    Attributes:
        reason: what the compiler says, in a line.
        pieces: what runs the region; empty if that is not known yet.
        stored: whether the store has it for this very region.
        lasting: whether the compiler will reject the region in later processes as well.
    """

    def __init__(self, reason: str, pieces: Sequence[Piece] = (), *, stored: bool = False, lasting: bool = True):
        super().__init__(reason)
        self.reason = reason
        self.pieces = tuple(pieces)
        self.stored = stored
        self.lasting = lasting


def write(rejection: RejectedRegion) -> Mapping[str, bytes]:
    """Returns the artifacts of a rejection."""
    pieces = [[piece.start, piece.stop, WAYS.index(piece.way)] for piece in rejection.pieces]
    body = {"format": FORMAT, "pieces": pieces}
    return {REFUSED: f"rejected: {rejection.reason}".encode(), PIECES: encode(body)}


def read(artifacts: Mapping[str, bytes], region: Graph) -> RejectedRegion | None:
    """Returns the rejection that was stored for a region; None if it was compiled.

    Raises:
        ValueError: if the artifacts are damaged, or of another region.
    """
    if PIECES not in artifacts:
        return None
    (listed,) = decode(artifacts[PIECES], "rejection", format=FORMAT).fields("pieces")
    pieces = tuple(_read_piece(value, len(region.ops)) for value in listed.items())
    starts = [piece.start for piece in pieces]
    if pieces and [*starts, len(region.ops)] != [0, *(piece.stop for piece in pieces)]:
        raise ValueError("pieces that are not the whole region")
    reason = artifacts.get(REFUSED, b"rejected").decode(errors="replace").removeprefix("rejected: ")
    return RejectedRegion(reason, pieces, stored=True)


def _read_piece(value: Value, operations: int) -> Piece:
    start, stop, way = value.items(3)
    first = start.integer(0, operations - 1)
    return Piece(first, stop.integer(first + 1, operations), WAYS[way.integer(0, len(WAYS) - 1)])


Build = Callable[[Graph, Sequence[Any], Piece], Run]
"""Returns the function of a piece for these arguments. Raises whatever goes wrong."""


def run_in_pieces(
    region: Graph, args: Sequence[Any], pieces: Sequence[Piece], build: Build
) -> tuple[Run, tuple[Piece, ...]]:
    """Returns a function that runs a rejected region piece by piece, and the pieces.

    Each piece is run once to make the arguments of the next one.

    Args:
        region: without symbolic sizes, random numbers and writes into its inputs.
        args: its first arguments.
        pieces: that are known to work; others are tried where there are none, or one fails.
        build: builds the function of a piece.

    Raises:
        Exception: what the last way to run an operation raises.
    """
    pending = deque(pieces or _divide(region, Piece(0, len(region.ops), OWN)))
    values = dict(enumerate(args))
    steps: list[tuple[Part, Run]] = []
    done: list[Piece] = []
    while pending:
        piece = pending.popleft()
        part = take(region, piece.start, piece.stop)
        given = [values[number] for number in part.inputs]
        try:
            run = build(part.graph, given, piece)
            results = run(given)
        except Exception as error:
            if piece.way == OPERATIONS or is_out_of_memory(error):
                raise
            logger.info("operations %d to %d do not run by %s", piece.start, piece.stop, piece.way, exc_info=error)
            pending.extendleft(reversed(_divide(region, piece)))
            continue
        values.update(zip(part.outputs, results, strict=True))
        steps.append((part, run))
        done.append(piece)
    return _chain(region, steps), tuple(done)


def _divide(region: Graph, piece: Piece) -> Sequence[Piece]:
    """Returns what is tried in place of a piece that does not work."""
    if piece.way == OWN and piece.stop - piece.start >= LEAST_OPERATIONS:
        place = cut(take(region, piece.start, piece.stop).graph)
        if place is not None:
            middle = piece.start + place
            return Piece(piece.start, middle, OWN), Piece(middle, piece.stop, OWN)
    return (Piece(piece.start, piece.stop, WAYS[WAYS.index(piece.way) + 1]),)


def _chain(region: Graph, steps: Sequence[tuple[Part, Run]]) -> Run:
    def run(args: Sequence[Any]) -> Sequence[Any]:
        values = dict(enumerate(args))
        for part, compute in steps:
            results = compute([values[number] for number in part.inputs])
            values.update(zip(part.outputs, results, strict=True))
        return [values[number] for number in region.outputs]

    return run


def describe_pieces(pieces: Sequence[Piece], title: str) -> str:
    """Returns how a rejected region runs, in a few words.

    Args:
        pieces: what runs it.
        title: of the compiler that rejected the whole.
    """
    titles = {OWN: title, INDUCTOR: "TorchInductor", OPERATIONS: "torch"}
    compilers = " and ".join(dict.fromkeys(titles[piece.way] for piece in pieces))
    return f"runs in {len(pieces)} pieces by {compilers}" if len(pieces) > 1 else f"runs by {compilers}"
