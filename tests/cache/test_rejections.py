"""A region that its compiler rejects runs in pieces."""

import pytest
import torch
from drawn_regions import Sketch

from fusioncache.backends.eager import Eager
from fusioncache.cache.backend_executables import run_in_pieces


def region(operations=24, bad=17):
    """A chain of additions, with one operation that a compiler does not like."""
    s = Sketch()
    x = s.input()
    value = x
    for number in range(operations):
        value = s.op("tanh", value) if number == bad else s.op("add", value, x)
    return s.graph(value, x)


def build(graph, args):
    """Rejects each piece with ``tanh``."""
    if any(op.name == "prims.tanh" for op in graph.ops):
        raise RuntimeError("I do not like tanh")
    return Eager().compile(graph, args)


def check(run, graph, args):
    for one, other in zip(run(args), Eager().compile(graph, args)(args), strict=True):
        assert torch.equal(one, other)


ARGS = [torch.linspace(0, 1, 6).reshape(2, 3)]


def test_the_smallest_piece_runs_by_operations():
    graph = region()
    run, compiled = run_in_pieces(graph, ARGS, build)
    check(run, graph, ARGS)
    assert compiled.count(False) == 1 and compiled.count(True) > 1
    check(run, graph, [torch.ones(2, 3)])


@pytest.mark.parametrize("operations", [3, 24])
def test_what_cannot_be_compiled_in_halves_runs_by_operations(operations):
    def refuse(graph, args):
        raise RuntimeError("I do not like it")

    graph = region(operations, 1)
    run, compiled = run_in_pieces(graph, ARGS, refuse)
    check(run, graph, ARGS)
    assert not any(compiled)


def test_what_no_way_can_run_raises(monkeypatch):
    def fail(graph, args=()):
        raise RuntimeError("nothing runs")

    monkeypatch.setattr("fusioncache.cache.backend_executables.run_one_by_one", fail)
    with pytest.raises(RuntimeError, match="nothing runs"):
        run_in_pieces(region(), ARGS, build)


def test_no_memory_is_no_rejection():
    def fill(graph, args):
        raise torch.OutOfMemoryError("full")

    with pytest.raises(torch.OutOfMemoryError):
        run_in_pieces(region(), ARGS, fill)
