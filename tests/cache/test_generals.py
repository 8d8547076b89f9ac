"""Code for any sizes: which regions are generalized with which, when that pays, and what a store knows of them.

When a function of a general size gives way to one of its own size, and when not.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch
from drawn_regions import ENVIRONMENT, Sketch

from fusioncache.backends.api import Run
from fusioncache.backends.eager import Eager
from fusioncache.cache import backend_executables
from fusioncache.cache.backend_executables import (
    OFTEN,
    Order,
    prepare_capture,
    replace_if_reused,
)
from fusioncache.cache.executable import Builder
from fusioncache.cache.generals import (
    FoundGeneral,
    GeneralRegions,
    Generation,
    KeptPlace,
    Sizes,
    check_general,
    keep_place,
    read_places,
)
from fusioncache.cache.length_rule import GENERAL_COST, LengthRule
from fusioncache.ir import Const, Declined, Graph, NumberType, Op, Ref, TensorType
from fusioncache.store.entry import SIZES_SLOT, is_compiled
from fusioncache.template.key import graph_key
from fusioncache.template.skeleton import fill, read_holes, skeleton_of

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
    check_general(region(2**15, 2**15))
    with pytest.raises(Declined, match=reason):
        check_general(graph)


def lengths(rule: LengthRule, *waited: float, alone: float = 2.0, function: object = FUNCTION) -> list[bool]:
    """Returns, for each program, whether it gets code for any sizes, if each of the others waits so many seconds."""
    decided = []
    for number, seconds in enumerate(waited):
        program = Generation(function, number)
        decided.append(rule.takes_general(program))
        if not decided[-1]:
            rule.note(program, alone, seconds, may_share=number > 0)
    return decided


PRICE = GENERAL_COST * 2.0


@pytest.mark.parametrize(
    ("waited", "decided"),
    [
        ([2.0, PRICE / 2, PRICE / 2, 0.0, 0.0], [False, False, False, True, True]),
        ([2.0, PRICE, 0.0], [False, False, True]),
        ([2.0, *[PRICE / 10] * 9, 0.0], [False] * 11),
        ([1000.0, 0.0], [False, False]),
    ],
    ids=["in two lengths", "in one length", "not enough", "in the first length, which is no reason"],
)
def test_lengths_get_code_of_their_own_until_they_waited_as_long_as_code_for_any_sizes_takes(waited, decided):
    rule = LengthRule()
    assert lengths(rule, *waited) == decided
    assert lengths(rule, 2.0, 0.0, function=OTHER) == [False, False]  # each function pays for itself


def product(*shape: int, factor: float = 0.3) -> Graph:
    s = Sketch()
    type_ = TensorType("float32", shape, "cpu")
    return s.graph(s.op("mul", s.input(type_), factor, type_=type_))


SKELETON = skeleton_of(product(2, 64))
KEY = graph_key(SKELETON, ENVIRONMENT)


def place(*regions: Graph, function: str = "f") -> KeptPlace:
    return KeptPlace(function, tuple(map(read_holes, regions)))


def test_a_place_comes_back_and_goes_on(store):
    regions = (product(2, 64), product(3, 96, factor=-0.7))
    keep_place(store, KEY, place(*regions), "mul")
    (kept,) = read_places(store, KEY)
    assert kept == place(*regions) and tuple(fill(SKELETON, each) for each in kept.instances) == regions
    assert not is_compiled(SIZES_SLOT)
    later = [place(*regions, product(2, 96)), place(regions[0])]
    later += [place(product(2, 64, factor=0.7)), place(regions[0], function="g")]
    for each in later:
        keep_place(store, KEY, each, "mul")
    assert read_places(store, KEY) == (later[0], *later[2:])
    # Each skeleton and each environment has its own.
    keys = [graph_key(skeleton_of(product(2, 3, 4)), ENVIRONMENT)]
    keys += [graph_key(SKELETON, {**ENVIRONMENT, name: "another"}) for name in ENVIRONMENT]
    assert [read_places(store, key) for key in keys] == [()] * (1 + len(ENVIRONMENT))
    assert graph_key(skeleton_of(product(7, 9, factor=5.0)), ENVIRONMENT) == KEY


PLACE = '{"format":2,"places":[{"function":"f","instances":%s}]}'


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        '{"format":1,"places":[]}',
        PLACE % "[]",
        PLACE % "[[2.5]]",
        PLACE.replace('"f"', "1") % "[[2]]",
        PLACE % '[[["float"]]]',
    ],
)
def test_sizes_that_do_not_decode_are_removed(store, content):
    assert store.save(KEY, SIZES_SLOT, {"sizes": content.encode()})
    with pytest.warns(RuntimeWarning, match="sizes that do not decode"):
        assert read_places(store, KEY) == ()
    assert store.peek(KEY, SIZES_SLOT) is None
    keep_place(store, KEY, place(product(2, 64)), "mul")
    assert len(read_places(store, KEY)) == 1


ODD = [(0, 1), (0, Const("float", "0x1p0")), (2, 2), (2, Const("float", "x")), (2, Const("float", "0x1p99999"))]


@pytest.mark.parametrize(("hole", "value"), [*ODD, (4, None)])
def test_what_is_in_no_hole_is_no_region(hole, value):
    holes = read_holes(product(2, 64))
    others = (*holes[:hole], *(() if value is None else (value,)), *holes[hole + 1 :])
    fill(SKELETON, holes)
    with pytest.raises(ValueError, match=r"hole|hexadecimal"):
        fill(SKELETON, others)


def make_run(name: str) -> Run:
    return lambda args: [name]


@dataclass
class Pool:
    """Compiles beside this process, and is done when a test says so."""

    done: bool = False
    takes_orders: bool = True
    fails: str = ""
    asked: list[str] = field(default_factory=list)

    def answer(self, question: str, answer: object) -> object:
        self.asked.append(question)
        if question == self.fails:
            raise ValueError(question)
        return answer

    def run(self, **options) -> Run:
        order = Order(
            lambda: self.answer("place", self.takes_orders),
            lambda: self.answer("is done", self.done),
            lambda args: self.answer("fetch", make_run("own")),
            lambda args: self.answer("build", make_run("own")),
            lambda args: self.answer("build apart", make_run("apart")),
            **options,
        )
        return replace_if_reused(make_run("general"), order)


def call(run: Run, times: int) -> Sequence[str]:
    return [run([])[0] for _ in range(times)][-1]


def prepared(run: Run) -> tuple[str, int]:
    """Returns what the call before a capture gives, and how many regions of it have to be waited for."""
    with prepare_capture() as unsettled:
        return run([])[0], len(unsettled)


def test_a_size_that_is_used_often_gets_its_own():
    pool = Pool()
    run = pool.run()
    assert call(run, OFTEN - 1) == "general" and not pool.asked
    assert call(run, 300) == "general" and pool.asked[0] == "place" and pool.asked.count("place") == 1
    pool.done = True
    assert call(run, 30) == "own"
    asked = len(pool.asked)
    assert call(run, 3 * OFTEN) == "own" and len(pool.asked) == asked
    assert pool.asked.count("fetch") == 1


@pytest.mark.parametrize("captures", [True, False])
def test_deterministic_algorithms_keep_the_general_function(captures):
    run = Pool(done=True).run(captures=captures)
    torch.use_deterministic_algorithms(True)
    try:
        assert call(run, 3 * OFTEN) == "general"
        assert prepared(run) == ("general", 0 if captures else 1)
    finally:
        torch.use_deterministic_algorithms(False)


def test_the_call_before_a_capture_waits_for_the_pool_and_compiles_here_without_one():
    pool = Pool()
    run = pool.run(captures=False)
    assert [prepared(run) for _ in range(3)] == [("general", 1)] * 3
    assert pool.asked.count("place") == 1 and "build" not in pool.asked
    pool.done = True
    assert prepared(run) == ("own", 0)
    pool = Pool(takes_orders=False)
    run = pool.run(captures=False)
    assert call(run, 1) == "general"
    assert [prepared(run) for _ in range(2)] == [("own", 0)] * 2
    assert pool.asked.count("build") == 1
    assert call(run, 3 * OFTEN) == "own"
    assert prepared(Pool(takes_orders=False, fails="build").run(captures=False)) == ("general", 1)


def test_a_capture_never_meets_the_general_function(monkeypatch):
    pool = Pool()
    run = pool.run(captures=False)
    monkeypatch.setattr(backend_executables, "is_capturing", lambda: True)  # as in a CUDA graph of the user's
    assert call(run, 3) == "apart" and pool.asked == ["build apart"]
    monkeypatch.setattr(backend_executables, "is_capturing", lambda: False)
    assert call(run, 3) == "general"
    pool.done = True
    assert prepared(run) == ("own", 0)
    monkeypatch.setattr(backend_executables, "is_capturing", lambda: True)
    assert call(run, 1) == "own"
