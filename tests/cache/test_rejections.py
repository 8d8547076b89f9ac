"""A region that its compiler rejects runs in pieces, and the next process knows which."""

import pytest
import torch
from drawn_regions import Sketch

from fusioncache.backends.eager import Eager
from fusioncache.cache.rejections import INDUCTOR, OPERATIONS, OWN, Piece, RejectedRegion, read, run_in_pieces, write
from fusioncache.store.entry import REFUSED


def region(operations=24, bad=17):
    """A chain of additions, with one operation that a compiler does not like."""
    s = Sketch()
    x = s.input()
    value = x
    for number in range(operations):
        value = s.op("tanh", value) if number == bad else s.op("add", value, x)
    return s.graph(value, x)


class Compiler:
    """Rejects each piece with ``tanh``, by the ways that it is told to fail in."""

    def __init__(self, *fails):
        self.fails = fails
        self.tried = []

    def build(self, graph, args, piece):
        self.tried.append(piece)
        if piece.way in self.fails and any(op.name == "prims.tanh" for op in graph.ops):
            raise RuntimeError("I do not like tanh")
        return Eager().compile(graph, args)


def check(run, graph, args):
    for one, other in zip(run(args), Eager().compile(graph, args)(args), strict=True):
        assert torch.equal(one, other)


ARGS = [torch.linspace(0, 1, 6).reshape(2, 3)]


@pytest.mark.parametrize(
    ("fails", "way"), [((OWN,), INDUCTOR), ((OWN, INDUCTOR), OPERATIONS)], ids=["inductor", "operations"]
)
def test_the_smallest_piece_runs_another_way(fails, way):
    graph, compiler = region(), Compiler(*fails)
    run, pieces = run_in_pieces(graph, ARGS, (), compiler.build)
    check(run, graph, ARGS)
    assert [piece.start for piece in pieces[1:]] == [piece.stop for piece in pieces[:-1]]
    (other,) = [piece for piece in pieces if piece.way != OWN]
    assert other.way == way and other.start <= 17 < other.stop and other.stop - other.start < 8
    check(run, graph, [torch.ones(2, 3)])


def test_known_pieces_are_not_searched():
    graph, compiler = region(), Compiler(OWN)
    _, pieces = run_in_pieces(graph, ARGS, (), compiler.build)
    again = Compiler(OWN)
    run, same = run_in_pieces(graph, ARGS, pieces, again.build)
    check(run, graph, ARGS)
    assert same == pieces == tuple(again.tried)


def test_known_pieces_that_fail_are_searched():
    graph = region()
    run, pieces = run_in_pieces(graph, ARGS, (Piece(0, 24, OWN),), Compiler(OWN).build)
    check(run, graph, ARGS)
    assert len(pieces) > 1


def test_what_no_way_can_run_raises():
    with pytest.raises(RuntimeError, match="do not like tanh"):
        run_in_pieces(region(), ARGS, (), Compiler(OWN, INDUCTOR, OPERATIONS).build)


def test_no_memory_is_no_rejection():
    def build(graph, args, piece):
        raise torch.OutOfMemoryError("full")

    with pytest.raises(torch.OutOfMemoryError):
        run_in_pieces(region(), ARGS, (), build)


def test_a_rejection_is_read_as_it_was_written():
    pieces = Piece(0, 10, OWN), Piece(10, 13, INDUCTOR), Piece(13, 24, OPERATIONS)
    for known in (pieces, ()):
        found = read(write(RejectedRegion("no reason", known)), region())
        assert (found.reason, found.pieces) == ("no reason", known)
    assert read({REFUSED: b"random numbers"}, region()) is None


@pytest.mark.parametrize(
    "pieces",
    [
        '{"format":1,"pieces":[[0,10,0]]}',  # not the whole
        '{"format":1,"pieces":[[0,10,0],[11,24,0]]}',  # a gap
        '{"format":1,"pieces":[[10,24,0],[0,10,0]]}',
        '{"format":1,"pieces":[[0,25,0]]}',
        '{"format":1,"pieces":[[0,24,3]]}',
        '{"format":1,"pieces":[[0,0,0],[0,24,0]]}',
        '{"format":2,"pieces":[]}',
        "[]",
        "",
    ],
)
def test_damaged_rejections_are_refused(pieces):
    with pytest.raises(ValueError, match=r"pieces|rejection"):
        read({"pieces": pieces.encode(), REFUSED: b"x"}, region())
