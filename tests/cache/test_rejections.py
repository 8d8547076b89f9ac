"""A region that its compiler rejects runs in pieces."""

import pytest
import torch
from drawn_regions import Sketch

from fusioncache.backends.eager import Eager
from fusioncache.cache.backend_executables import run_in_pieces

ARGS = [torch.linspace(0, 1, 6).reshape(2, 3)]


def region():
    """A chain of additions, with one operation that a compiler does not like."""
    s = Sketch()
    x = s.input()
    value = x
    for number in range(24):
        value = s.op("tanh", value) if number == 17 else s.op("add", value, x)
    return s.graph(value, x)


def reject_tanh(graph, args):
    if any(op.name == "prims.tanh" for op in graph.ops):
        raise RuntimeError("I do not like tanh")
    return Eager().compile(graph, args)


def test_the_smallest_piece_that_cannot_be_compiled_runs_by_operations():
    run, compiled = run_in_pieces(region(), ARGS, reject_tanh)
    for args in (ARGS, [torch.ones(2, 3)]):
        assert all(map(torch.equal, run(args), Eager().compile(region(), args)(args)))
    assert any(compiled) and compiled.count(False) == 1


def test_no_memory_is_no_rejection():
    def fill(graph, args):
        raise torch.OutOfMemoryError("full")

    with pytest.raises(torch.OutOfMemoryError):
        run_in_pieces(region(), ARGS, fill)
