"""General code: which regions are generalized together, and what the store contains of them."""

import pytest
from drawn_regions import ENVIRONMENT, draw

from fusioncache.backends.eager import Eager
from fusioncache.cache.executable import Builder
from fusioncache.cache.generals import (
    FoundGeneral,
    GeneralRegions,
    Generation,
    Piece,
    Rejection,
    Sizes,
    StoredGroup,
    StoredRegions,
    find_general_obstacle,
    read_regions,
    store_regions,
)
from fusioncache.ir import Const, GeneralInstance, Graph, NumberType, Op, Ref, TensorType
from fusioncache.store.entry import SIZES_SLOT, is_compiled
from fusioncache.template.key import graph_key
from fusioncache.template.skeleton import fill, read_holes, skeleton_of

FUNCTION, OTHER = object(), object()


def region(*shape: int) -> Graph:
    return draw("tanh(x)", x=shape)


class Seen:
    """The general regions of a cache, which programs look up one at a time."""

    def __init__(self, sizes: Sizes = Sizes.AUTO):
        self.generals, self.sizes = GeneralRegions(8), sizes

    def foresee(self, *shape: int) -> FoundGeneral | None:
        return self.generals.find(region(*shape), None, self.sizes, Builder(Eager(), environment={"options": ""}))

    def find(self, number: int, *shape: int, function: object = FUNCTION, options: str = "") -> FoundGeneral | None:
        builder = Builder(Eager(), environment={"options": options})
        return self.generals.find(region(*shape), Generation(function, number), self.sizes, builder)


def test_one_general_function_serves_all_lengths_and_a_more_general_one_other_sizes_too():
    seen = Seen()
    assert seen.find(0, 2, 64) is None
    found = [seen.find(number, *shape) for number, shape in enumerate([(2, 96), (2, 32), (3, 64), (5, 7), (2, 50)], 1)]
    assert [each.values for each in found] == [(96,), (32,), (3, 64), (5, 7), (2, 50)]
    narrow, again, wide, *later = (each.executable for each in found)
    assert narrow is again is not wide
    assert all(each is wide for each in later)  # the newest one, also where both fit


def test_layouts_of_earlier_calls_correct_predicted_ones():
    seen = Seen()
    executable = [seen.find(number, 2, length) for number, length in enumerate((64, 96))][-1].executable
    row, column = (((2, 50), (50, 1)),), (((2, 50), (1, 2)),)
    assert executable.correct_layouts(row, region(2, 50)) == [row]
    executable.note_layouts((((2, 96), (1, 2)),))
    assert [executable.correct_layouts(each, region(2, 50)) for each in (row, column)] == [[column], [column]]
    executable.note_layouts((((2, 96), (96, 1)),))
    assert executable.correct_layouts(row, region(2, 50)) == [row]
    for gap in range(2, 6):  # with gaps, so nothing is known of other sizes; the oldest are forgotten
        executable.note_layouts((((2, 96), (96 * gap, 1)),))
    assert executable.correct_layouts(column, region(2, 50)) == [column]


def test_a_region_that_is_asked_for_and_then_called_is_in_one_place():
    seen = Seen()
    assert [seen.find(0, 2, 64) for _ in range(2)] == [None, None]
    assert seen.find(1, 2, 96) == seen.find(1, 2, 96) is not None
    assert seen.find(0, 2, 64)  # again, and later than one of the next program
    assert [seen.find(1, 5, 7) for _ in range(2)] == [None, None]  # the first program had one region only


def test_what_a_program_to_come_would_get_is_found_and_nothing_joins_by_that():
    seen = Seen()
    assert seen.foresee(2, 64) is None and seen.find(0, 2, 64) is None
    assert [seen.foresee(2, 96) for _ in range(2)] == [None, None]
    found = seen.find(1, 2, 96)
    assert [seen.foresee(*shape) for shape in ((2, 50), (3, 50))] == [FoundGeneral(found.executable, (50,)), None]
    assert seen.foresee(2, 50).instance == GeneralInstance(found.executable.family.general, (50,))
    assert seen.find(2, 2, 50).executable is found.executable


def test_settings_are_apart_and_functions_unless_all_sizes_are_dynamic():
    seen = Seen()
    assert seen.find(0, 2, 64) is None and seen.find(1, 2, 96, function=OTHER) is None
    seen = Seen(Sizes.DYNAMIC)
    assert seen.find(0, 2, 64) is None and seen.find(0, 2, 96, function=OTHER)
    # A function that was compiled under some settings serves no region under others.
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
    assert find_general_obstacle(region(2**15, 2**15)) is None
    assert reason in find_general_obstacle(graph)


def product(*shape: int, factor: float = 0.3) -> Graph:
    return draw(f"mul(x, {factor})", x=shape)


SKELETON = skeleton_of(product(2, 64))
KEY = graph_key(SKELETON, ENVIRONMENT)


def place(*regions: Graph, function: str = "f") -> StoredGroup:
    return StoredGroup(function, tuple(map(read_holes, regions)))


def keep(store, place: StoredGroup) -> None:
    store_regions(store, KEY, StoredRegions((place,)), "mul")


def read(store, key=KEY) -> tuple[StoredGroup, ...]:
    return read_regions(store, key).places


REJECTION = Rejection("too long", (Piece(0, 1, True, (((2, 64), (64, 1)), None)), Piece(1, 3, False, ())))


def test_a_rejection_comes_back_and_the_first_one_stays(store):
    keep(store, place(product(2, 64)))
    store_regions(store, KEY, StoredRegions(rejection=REJECTION), "mul")
    store_regions(store, KEY, StoredRegions(rejection=Rejection("too short", ())), "mul")
    keep(store, place(product(2, 64), function="g"))
    found = read_regions(store, KEY)
    assert found == StoredRegions((place(product(2, 64)), place(product(2, 64), function="g")), REJECTION)


def test_a_place_comes_back_and_goes_on(store):
    regions = (product(2, 64), product(3, 96, factor=-0.7))
    keep(store, place(*regions))
    (kept,) = read(store)
    assert kept == place(*regions) and tuple(fill(SKELETON, each) for each in kept.instances) == regions
    assert not is_compiled(SIZES_SLOT)
    later = [place(*regions, product(2, 96)), place(regions[0])]
    later += [place(product(2, 64, factor=0.7)), place(regions[0], function="g")]
    for each in later:
        keep(store, each)
    assert read(store) == (later[0], *later[2:])
    # Each skeleton and each environment has its own.
    keys = [graph_key(skeleton_of(product(2, 3, 4)), ENVIRONMENT)]
    keys += [graph_key(SKELETON, {**ENVIRONMENT, name: "another"}) for name in ENVIRONMENT]
    assert [read(store, key) for key in keys] == [()] * (1 + len(ENVIRONMENT))
    assert graph_key(skeleton_of(product(7, 9, factor=5.0)), ENVIRONMENT) == KEY


PLACE = '{"format":3,"places":[{"function":"f","instances":%s}],"rejection":null}'


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        '{"format":2,"places":[]}',
        '{"format":3,"places":[],"rejection":"too long"}',
        PLACE % "[]",
        PLACE % "[[2.5]]",
        PLACE.replace('"f"', "1") % "[[2]]",
        PLACE % '[[["float"]]]',
    ],
)
def test_sizes_that_do_not_decode_are_removed(store, content):
    assert store.save(KEY, SIZES_SLOT, {"sizes": content.encode()})
    with pytest.warns(RuntimeWarning, match="sizes that do not decode"):
        assert read_regions(store, KEY) == StoredRegions()
    assert store.load(KEY, SIZES_SLOT) is None
    keep(store, place(product(2, 64)))
    assert len(read(store)) == 1


ODD = [(0, 1), (0, Const("float", "0x1p0")), (2, 2), (2, Const("float", "x")), (2, Const("float", "0x1p99999"))]


@pytest.mark.parametrize(("hole", "value"), [*ODD, (4, None)])
def test_what_is_in_no_hole_is_no_region(hole, value):
    holes = read_holes(product(2, 64))
    others = (*holes[:hole], *(() if value is None else (value,)), *holes[hole + 1 :])
    fill(SKELETON, holes)
    with pytest.raises(ValueError, match=r"hole|hexadecimal"):
        fill(SKELETON, others)
