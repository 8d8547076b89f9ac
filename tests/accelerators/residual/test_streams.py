"""Residual streams as descriptions, and the events and costs of their plans. No Thunder, no torch."""

from dataclasses import replace
from math import isqrt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusioncache.accelerators.residual.plans import RegionChange, ResidualPlan, choose, costs_of, events_of
from fusioncache.accelerators.residual.sums import FEWEST_SUMS, FusedCall, OutsideValues, Stream, Sum, Use, streams_of
from fusioncache.ir import Const, Op, Ref, Region, TensorType

CARRY, SEGMENTED = ResidualPlan.CARRY, ResidualPlan.SEGMENTED
FLOAT = TensorType("float32", (2, 3), "cpu")


class Written:
    """A builder of a region, whose values have names."""

    def __init__(self, **inputs: TensorType):
        self.names = list(inputs)
        self.types = list(inputs.values())
        self.inputs = len(inputs)
        self.ops: list[Op] = []

    def op(self, name: str, result: str, *args: str, type_: TensorType = FLOAT, extra: tuple = ()):
        refs = tuple(Ref(self.names.index(arg)) for arg in args)
        self.ops.append(Op(f"prims.{name}", refs + extra, (type_,)))
        self.names.append(result)
        return self

    def call(self, position: int, *outputs: str) -> FusedCall:
        region = Region(tuple(self.types), tuple(self.ops), tuple(map(self.names.index, outputs)))
        return FusedCall(position, region, tuple(self.names))


def recomputed(depth: int, position: int, *, start: int = 0, give: bool = False) -> FusedCall:
    """``tanh(x{depth})``, where ``x{i} = x{i - 1} + a{i}``."""
    region = Written(**{f"x{start}": FLOAT}, **{f"a{i}": FLOAT for i in range(start + 1, depth + 1)})
    for i in range(start + 1, depth + 1):
        region.op("add", f"x{i}", f"x{i - 1}", f"a{i}")
    region.op("tanh", f"y{position}", f"x{depth}")
    return region.call(position, f"y{position}", *[f"x{depth}"] * give)


def line(order, size: int = 4) -> Stream:
    """Returns a stream without branches, whose sums are used in this order."""
    order = list(order)
    sums = [Sum("x1", None, ("x0", "a1"), "float32", size, 2 * size)]
    sums += [Sum(f"x{i}", f"x{i - 1}", (f"a{i}",), "float32", size, size) for i in range(2, max(order) + 1)]
    return Stream("x0", tuple(sums), tuple(Use(position, f"x{i}") for position, i in enumerate(order)))


def test_a_stream_says_what_is_added_and_where_it_is_wanted():
    (stream,) = streams_of([recomputed(depth, position) for position, depth in enumerate((1, 2, 3, 4, 3))])
    found = [(sum_.name, sum_.parent, sum_.terms, sum_.dtype, sum_.size) for sum_ in stream.sums]
    assert stream.head == "x0" and found == [
        ("x1", None, ("x0", "a1"), "float32", 24),
        *((f"x{i}", f"x{i - 1}", (f"a{i}",), "float32", 24) for i in (2, 3, 4)),
    ]
    assert [(use.sum, use.position) for use in stream.uses] == [
        *(("x1", 0), ("x2", 1), ("x3", 2), ("x4", 3), ("x3", 4)),
    ]


def test_a_sum_that_a_call_already_gives_goes_on_by_name():
    (stream,) = streams_of([recomputed(3, 0), recomputed(4, 1, give=True), recomputed(6, 2, start=4)])
    assert [sum_.name for sum_ in stream.sums] == [f"x{i}" for i in range(1, 7)]
    assert [(use.position, use.sum) for use in stream.uses] == [(0, "x3"), (1, "x4"), (2, "x6")]
    assert [event.inputs for event in events_of(stream)[CARRY]] == [(), ("x3",), ("x4",)]


def with_third(op: str, *args: str) -> FusedCall:
    """Returns a region in which x3 is the result of another op than in ``recomputed``."""
    region = Written(x0=FLOAT, a1=FLOAT, a2=FLOAT, a3=FLOAT)
    region.op("mul", "p", "a3", "a3").op("add", "x1", "x0", "a1").op("add", "x2", "x1", "a2")
    return region.op(op, "x3", *args).op("tanh", "y", "x3").call(9, "y")


def with_symbolic_sizes(call: FusedCall) -> FusedCall:
    symbolic = replace(FLOAT, shape=(2, Ref(0)))
    return replace(call, region=replace(call.region, inputs=(symbolic,) * len(call.region.inputs)))


TWICE = [recomputed(5, 0), recomputed(5, 1)]
LEFT = {
    "computed once": (TWICE[:1], {}),
    "too few sums": ([recomputed(FEWEST_SUMS - 1, 0), recomputed(FEWEST_SUMS - 1, 1)], {}),
    "also a difference": ([*TWICE, with_third("sub", "x2", "a3")], {}),
    "added the other way round": ([*TWICE, with_third("add", "a3", "x2")], {}),
    "another term": ([*TWICE, with_third("add", "x2", "p")], {}),
    "defined by others": (TWICE, {"defined": {"x3"}}),
    "a term that is written": (TWICE, {"written": {"a3"}}),
    "a head that is written": (TWICE, {"written": {"x0"}}),
    "symbolic sizes": (list(map(with_symbolic_sizes, TWICE)), {}),
}


@pytest.mark.parametrize(("calls", "around"), LEFT.values(), ids=LEFT)
def test_what_is_no_stream(calls, around):
    assert len(streams_of(TWICE)[0].sums) == 5
    assert len(streams_of([recomputed(FEWEST_SUMS, 0), recomputed(FEWEST_SUMS, 1)])) == 1
    assert streams_of(calls, OutsideValues(**around)) == ()


def check(stream: Stream, plan: ResidualPlan) -> tuple[int, int]:
    """Executes a plan; returns the number of terms and sums that were read, and the most sums alive at a time."""
    sums, values = {sum_.name: sum_ for sum_ in stream.sums}, {}
    for sum_ in stream.sums:
        values[sum_.name] = (values[sum_.parent] if sum_.parent else ()) + sum_.terms
    events = events_of(stream)[plan]
    last = {name: number for number, event in enumerate(events) for name in event.inputs}
    alive, given_before = {}, set()
    reads = most = 0
    for number, event in enumerate(events):
        local = {name: alive[name] for name in event.inputs}
        for name in event.sums:
            sum_ = sums[name]
            local[name] = (local[sum_.parent] if sum_.parent else ()) + sum_.terms
            reads += len(sum_.terms)
        reads += len(event.inputs)
        assert given_before.isdisjoint(event.outputs), "a sum is given once"
        given_before.update(event.outputs)
        alive.update({name: local[name] for name in event.outputs})
        most = max(most, len(alive))
        assert all(local[name] == values[name] for name in local)
        if isinstance(event, RegionChange):
            wanted = [use.sum for use in stream.uses if use.position == event.position]
            assert set(wanted) <= set(local)
        alive = {name: value for name, value in alive.items() if last.get(name, -1) > number}
    assert not alive
    positions = [event.position for event in events]
    assert positions == sorted(positions)
    return reads, most


@pytest.mark.parametrize("depth", [4, 99, 400])
def test_reads_grow_with_the_depth_and_sums_that_are_kept_with_its_root_at_most(depth):
    forward, backward = line(range(1, depth + 1)), line(range(depth, 0, -1))
    assert set(events_of(forward)) == {CARRY}
    assert check(forward, CARRY) == (2 * depth, 2)  # one sum is taken and one is given
    reads, alive = check(backward, SEGMENTED)
    assert reads <= 5 * depth + 1  # terms: twice; sums: once to continue from and once in the regions
    assert alive <= 2 * isqrt(depth) + 2
    assert sum(len(event.sums) for event in events_of(backward)[SEGMENTED]) <= 2 * depth


@given(st.lists(st.integers(1, 40), min_size=2, max_size=12))
@settings(max_examples=30)
def test_any_order_is_served(order):
    stream = line(order)
    for plan in events_of(stream):
        check(stream, plan)


def test_costs_count_bytes():
    costs = costs_of(line(range(1, 101), size=10))
    found = [(costs[plan].moved, costs[plan].kernels) for plan in (ResidualPlan.INLINE, CARRY)]
    assert found == [(10 * sum(i + 1 for i in range(1, 101)), 100), (10 * (101 + 2 * 99), 3)]
    assert [costs[plan].alive for plan in costs] == [0, 10, 20]


def test_what_is_chosen_follows_from_the_costs():
    forward, backward = costs_of(line(range(1, 101))), costs_of(line(range(100, 0, -1)))
    assert choose(forward) is CARRY
    budgets = {None: SEGMENTED, 400: CARRY, 200: SEGMENTED, 10: ResidualPlan.INLINE}
    assert {budget: choose(backward, budget=budget) for budget in budgets} == budgets
    assert choose(costs_of(line(range(1, 5)))) is ResidualPlan.INLINE


def add_in_halves(position: int) -> FusedCall:
    """``tanh`` of a sum in float32 that is rounded to bfloat16 after each add."""
    half = replace(FLOAT, dtype="bfloat16")
    region = Written(**{f"a{i}": half for i in range(5)})

    def convert(result: str, arg: str, type_: TensorType) -> None:
        region.op("convert_element_type", result, arg, type_=type_, extra=(Const("dtype", type_.dtype),))

    convert("u0", "a0", FLOAT)
    for i in range(1, 5):
        convert(f"c{i}", f"a{i}", FLOAT)
        region.op("add", f"s{i}", f"u{i - 1}", f"c{i}")
        convert(f"r{i}", f"s{i}", half)
        convert(f"u{i}", f"r{i}", FLOAT)
    return region.op("tanh", f"y{position}", "u4").call(position, f"y{position}")


def test_sums_are_kept_as_they_are_rounded_and_not_folded():
    (stream,) = streams_of([add_in_halves(position) for position in range(4)])
    found = [(each.name, each.parent, each.dtype, each.direct) for each in stream.sums]
    assert found == [(f"r{i}", f"r{i - 1}" if i > 1 else None, "bfloat16", i == 1) for i in range(1, 5)]
    assert ResidualPlan.FOLD not in costs_of(stream)
    assert ResidualPlan.FOLD in costs_of(line(range(1, 5)))
