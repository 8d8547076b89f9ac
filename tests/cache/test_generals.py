"""Which regions are generalized with which, and which are refused whoever compiles."""

import pytest
from drawn_regions import Sketch

from fusioncache.backends.eager import Eager
from fusioncache.cache.executable import Builder
from fusioncache.cache.generals import Allowance, FoundGeneral, GeneralRegions, Generation, Sizes, check_general
from fusioncache.ir import Declined, Graph, NumberType, Op, Ref, TensorType

FUNCTION, OTHER = object(), object()


def region(*shape: int) -> Graph:
    s = Sketch()
    type_ = TensorType("float32", shape, "cpu")
    return s.graph(s.op("tanh", s.input(type_), type_=type_))


class Seen:
    """Regions of programs, as they come."""

    def __init__(self, sizes: Sizes = Sizes.AUTO):
        self.generals, self.sizes = GeneralRegions(8), sizes

    def find(self, number: int, *shape: int, function: object = FUNCTION, options: str = "") -> FoundGeneral | None:
        builder = Builder(Eager(), environment={"options": options})
        program, graph = Generation(function, number), region(*shape)
        expected = self.generals.expects(graph, program, self.sizes, builder)
        found = self.generals.join(graph, program, self.sizes, builder)
        assert expected == (found is not None)
        return found


def test_one_general_function_serves_all_lengths_and_a_more_general_one_other_sizes_too():
    seen = Seen()
    assert seen.find(0, 2, 64) is None
    found = [seen.find(number, *shape) for number, shape in enumerate([(2, 96), (2, 32), (3, 64), (5, 7), (2, 50)], 1)]
    assert [each.values for each in found] == [(96,), (32,), (3, 64), (5, 7), (2, 50)]
    narrow, again, wide, *later = (each.executable for each in found)
    assert narrow is again is not wide
    assert all(each is wide for each in later)  # also where both fit: the one that was made last


def test_functions_are_apart_unless_all_sizes_are_dynamic():
    seen = Seen()
    assert seen.find(0, 2, 64) is None and seen.find(1, 2, 96, function=OTHER) is None
    seen = Seen(Sizes.DYNAMIC)
    assert seen.find(0, 2, 64) is None and seen.find(0, 2, 96, function=OTHER)


def test_settings_are_apart():
    """A function that was compiled under some settings serves no region under others."""
    seen = Seen()
    assert [seen.find(0, 2, 64, options=each) for each in ("precise", "fast")] == [None, None]
    one, other = (seen.find(1, 2, 96, options=each) for each in ("precise", "fast"))
    assert one and other and one.executable is not other.executable


def append(op: Op) -> Graph:
    graph = region(2, 3)
    return Graph(graph.inputs, (*graph.ops, op), graph.outputs)


WHOLE, SYMBOLIC = TensorType("float32", (2, 3), "cpu"), TensorType("float32", (Ref(1), 3), "cpu")


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        (region(2**16, 2**15), "a tensor with more elements than a 32-bit index can count"),
        (append(Op("prims.copy_", (Ref(1), Ref(0)), (WHOLE,))), "in-place effects"),
        (append(Op("prims.uniform_philox", (), (WHOLE,))), "random numbers"),
        (Graph((WHOLE, NumberType("int")), region(2, 3).ops, (1,)), "numbers or symbolic sizes"),
        (Graph((SYMBOLIC,), (Op("prims.tanh", (Ref(0),), (SYMBOLIC,)),), (2,), 1), "numbers or symbolic sizes"),
    ],
    ids=["elements", "a write", "random", "a number", "a symbolic size"],
)
def test_what_is_never_general_is_refused(graph, reason):
    check_general(region(2**15, 2**15))
    with pytest.raises(Declined, match=reason):
        check_general(graph)


def test_an_allowance_ends():
    allowance = Allowance()
    assert [allowance.take(2) for _ in range(4)] == [True, True, False, False]
    assert allowance.take(3) and not allowance.take(3) and allowance.take(4)
