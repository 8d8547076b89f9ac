"""A region that its compiler rejects runs in pieces."""

import pytest
import torch
from drawn_regions import Sketch

from fusioncache.backends.eager import Eager
from fusioncache.cache.backend_executables import run_in_pieces

ARGS = [torch.linspace(0, 1, 6).reshape(2, 3)]


def region(operations=24, bad=17):
    """A chain of additions, with one operation that a compiler does not like."""
    s = Sketch()
    x = s.input()
    value = x
    for number in range(operations):
        value = s.op("tanh", value) if number == bad else s.op("add", value, x)
    return s.graph(value, x)


def reject_tanh(graph, args):
    if any(op.name == "prims.tanh" for op in graph.ops):
        raise RuntimeError("I do not like tanh")
    return Eager().compile(graph, args)


def reject_all(*_):
    raise RuntimeError("I do not like it")


@pytest.mark.parametrize(
    ("graph", "build", "some"), [(region(), reject_tanh, True), (region(3, 1), reject_all, False)], ids=["some", "all"]
)
def test_the_smallest_pieces_that_cannot_be_compiled_run_by_operations(graph, build, some):
    run, compiled = run_in_pieces(graph, ARGS, build)
    for args in (ARGS, [torch.ones(2, 3)]):
        for one, other in zip(run(args), Eager().compile(graph, args)(args), strict=True):
            assert torch.equal(one, other)
    assert any(compiled) is some and (compiled.count(False) == 1 or not some)


def test_what_no_way_can_run_raises(monkeypatch):
    monkeypatch.setattr("fusioncache.cache.backend_executables.run_one_by_one", reject_all)
    with pytest.raises(RuntimeError, match="I do not like it"):
        run_in_pieces(region(), ARGS, reject_tanh)


def test_no_memory_is_no_rejection():
    def fill(graph, args):
        raise torch.OutOfMemoryError("full")

    with pytest.raises(torch.OutOfMemoryError):
        run_in_pieces(region(), ARGS, fill)
