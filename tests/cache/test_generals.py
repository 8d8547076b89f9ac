"""Which regions are generalized with which, and which are refused whoever compiles."""

from dataclasses import replace

import pytest
from drawn_regions import Sketch

from fusioncache.backends.eager import Eager
from fusioncache.cache.executable import Builder
from fusioncache.cache.generals import FoundGeneral, GeneralRegions, Generation, Sizes, check_general
from fusioncache.ir import Declined, Graph, NumberType, Op, Ref, TensorType

FUNCTION, OTHER = object(), object()


def region(*shape: int) -> Graph:
    s = Sketch()
    type_ = TensorType("float32", shape, "cpu")
    return s.graph(s.op("tanh", s.input(type_), type_=type_))


class Seen:
    """Regions of programs, as they come."""

    def __init__(self, sizes: Sizes = Sizes.AUTO):
        self.generals = GeneralRegions(8)
        self.sizes = sizes

    def find(self, number: int, *shape: int, function: object = FUNCTION) -> FoundGeneral | None:
        return self.generals.join(region(*shape), Generation(function, number), self.sizes, Builder(Eager()))

    def expects(self, number: int, *shape: int) -> bool:
        return self.generals.expects(region(*shape), Generation(FUNCTION, number), self.sizes, Builder(Eager()))


def test_one_general_function_serves_all_lengths():
    seen = Seen()
    assert not seen.expects(0, 2, 64) and seen.find(0, 2, 64) is None
    assert seen.expects(1, 2, 96)
    general = seen.find(1, 2, 96)
    assert general and general.values == (96,)
    assert seen.expects(2, 2, 200)
    later = seen.find(2, 2, 200)
    assert later and later.executable is general.executable and later.values == (200,)


def test_another_size_that_varies_makes_it_more_general():
    seen = Seen()
    for number, length in enumerate((64, 96, 32)):
        seen.find(number, 2, length)
    wider = seen.find(3, 3, 64)
    assert wider and wider.values == (3, 64)
    last = seen.find(4, 5, 7)
    assert last and last.executable is wider.executable
    narrow = seen.find(5, 2, 50)
    assert narrow and narrow.executable is wider.executable  # the one that was made last


def test_a_region_that_comes_again_is_not_generalized():
    seen = Seen()
    assert [seen.find(number, 2, 64) for number in range(3)] == [None] * 3


def test_each_region_of_a_program_goes_with_the_nearest():
    seen = Seen()
    assert seen.find(0, 8, 64) is None and seen.find(0, 4, 64) is None
    first, second = seen.find(1, 4, 96), seen.find(1, 8, 96)
    assert first and second and first.values == second.values == (96,)


def test_functions_are_apart():
    seen = Seen()
    assert seen.find(0, 2, 64) is None and seen.find(1, 2, 96, function=OTHER) is None
    everybody = Seen(Sizes.DYNAMIC)
    assert everybody.find(0, 2, 64) is None and everybody.find(0, 2, 96, function=OTHER)


def test_settings_are_apart():
    """A function that was compiled under some settings serves no region under others."""
    seen = Seen()
    builders = [Builder(Eager(), environment={"options": each}) for each in ("precise", "fast")]

    def find(number: int, length: int) -> list[FoundGeneral | None]:
        generation = Generation(FUNCTION, number)
        return [seen.generals.join(region(2, length), generation, Sizes.AUTO, each) for each in builders]

    assert find(0, 64) == [None, None]
    one, other = find(1, 96)
    assert one and other and one.executable is not other.executable


def test_what_is_forgotten_is_compiled_as_it_is():
    seen = Seen()
    seen.find(0, 2, 64)
    seen.generals.clear()
    assert seen.find(1, 2, 96) is None


def test_too_many_elements_are_refused():
    check_general(region(2**15, 2**15))
    with pytest.raises(Declined, match="a tensor with more elements than a 32-bit index can count"):
        check_general(region(2**16, 2**15))


def test_writes_and_random_numbers_are_refused():
    graph = region(2, 3)
    (type_,) = graph.inputs
    write = Op("prims.copy_", (Ref(1), Ref(0)), (type_,))
    with pytest.raises(Declined, match="in-place effects"):
        check_general(replace(graph, ops=(*graph.ops, write)))
    with pytest.raises(Declined, match="random numbers"):
        check_general(replace(graph, ops=(*graph.ops, Op("prims.uniform_philox", (), (type_,)))))
    with pytest.raises(Declined, match="numbers or symbolic sizes"):
        check_general(Graph((type_, NumberType("int")), graph.ops, graph.outputs))
    symbolic = TensorType("float32", (Ref(1), 3), "cpu")
    with pytest.raises(Declined, match="numbers or symbolic sizes"):
        check_general(Graph((symbolic,), (Op("prims.tanh", (Ref(0),), (symbolic,)),), (2,), 1))
