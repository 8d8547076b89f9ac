"""Schedules of small programs as text, calls in and steps out; their timelines; and invariants of every schedule."""

import re
import sys
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusioncache.accelerators.schedule.calls import (
    COLLECTIVES,
    CallGraph,
    CallNode,
    Kind,
    find_movable,
    find_producers,
    measure_peaks,
)
from fusioncache.accelerators.schedule.order import Bounds, Placement, schedule_calls

FORWARD = """
gather  f3:64 = all_gather(w3:32)
gather  f2:8 = all_gather(w2:4)
gather  f1:64 = all_gather(w1:32)
wait    p1:64 = wait(f1)
wait    p2:8 = wait(f2)
wait    p3:64 = wait(f3)
view    v2:8 = expand(p2)
compute x1:16 = embed(tokens, p1)
compute x2:16 = norm(x1, v2)
compute y:16 = linear(x2, p3)
compute return(y, x1, x2, p3)
"""
BACKWARD = """
compute x1, x2, p3 = unpack(saved)
compute g2:16 = matmul(g, p3)
compute d3:64 = matmul(g, x2)
compute g1:16, d2:8 = norm_backward(g2, x1)
compute d1:64 = embedding_backward(g1, tokens)
compute a1:64 = div(d1)
reduce  r1:32 = reduce_scatter(a1)
compute a2:8 = div(d2)
reduce  r2:4 = reduce_scatter(a2)
compute a3:64 = div(d3)
reduce  r3:32 = reduce_scatter(a3)
wait    s1:32 = wait(r1)
wait    s2:4 = wait(r2)
wait    s3:32 = wait(r3)
compute return(s1, s2, s3)
"""
COPIES = """
compute d3:64 = matmul(g, x3)
compute g2:16 = layer(g, p3)
compute d2:64 = matmul(g2, x2)
compute g1:16 = layer(g2, p2)
compute d1:64 = matmul(g1, x1)
compute g0:16 = layer(g1, p1)
reduce  r1:32 = reduce_scatter(d1)
reduce  r2:32 = reduce_scatter(d2)
reduce  r3:32 = reduce_scatter(d3)
wait    s1:32 = wait(r1)
compute b1:32 = div(s1)
reduce  q1:32 = all_reduce(b1)
wait    t1:32 = wait(q1)
wait    s2:32 = wait(r2)
compute b2:32 = div(s2)
reduce  q2:32 = all_reduce(b2)
wait    t2:32 = wait(q2)
wait    s3:32 = wait(r3)
compute b3:32 = div(s3)
reduce  q3:32 = all_reduce(b3)
wait    t3:32 = wait(q3)
compute return(t1, t2, t3, g0)
"""
"""A backward pass with two copies of the shards, each of which averages its gradients with the other."""

NEEDED = """
compute a:8 = matmul(x, w)
reduce  r:8 = all_reduce(a)
wait    s:8 = wait(r)
compute d:8 = matmul(x, v)
reduce  q:8 = all_reduce(d)
wait    t:8 = wait(q)
compute y:8 = norm(s)
compute return(y, t)
"""
"""One sum is needed by something computed, the other one is only returned."""

SCHEDULES = {
    "gathers that a bound holds back": (FORWARD, Bounds(64, 64), "f1 p1 f2 x1 p2 v2 f3 x2 p3 y return"),
    # A reduce starts directly after the gradient that it sums and the division.
    "reduces": (BACKWARD, Bounds(72, 72), "x1 g2 d3 a3 r3 g1 a2 r2 d1 s3 a1 r1 s1 s2 return"),
    # A reduce between copies starts two reduces after the one between the shards.
    "copies": (
        COPIES,
        Bounds(600, 600),
        "d3 r3 g2 d2 r2 g1 d1 r1 s3 b3 q3 g0 s2 b2 q2 s1 b1 q1 t1 t2 t3 return",
    ),
    "what something computed needs travels at once": (NEEDED, Bounds(200, 200, 200), "a r d s y q t return"),
}


_LINE = re.compile(r"(\w+) +(?:(\S.*?) = )?(\w+)\((.*?)\)")


def read_calls(text: str) -> CallGraph:
    """Reads a line such as ``reduce f:64 = all_reduce(a)`` for each call; ``:64`` is a value's size in bytes."""
    sizes: dict[str, int] = {}

    def read_names(written: str | None) -> tuple[str, ...]:
        found = [one.partition(":")[::2] for one in re.findall(r"[\w:]+", written or "")]
        sizes.update({name: int(size) for name, size in found if size})
        return tuple(name for name, _ in found)

    calls = []
    for line in text.strip().splitlines():
        kind, gives, name, takes = _LINE.match(line.strip()).groups()
        channel = kind if Kind(kind) in COLLECTIVES else ""
        calls.append(CallNode(Kind(kind), name, read_names(takes), read_names(gives), channel=channel))
    return CallGraph(tuple(calls), sizes)


def place(text, bounds):
    graph = read_calls(text)
    return Placement(graph, schedule_calls(graph, bounds), bounds)


@pytest.mark.parametrize(("text", "bounds", "order"), SCHEDULES.values(), ids=SCHEDULES)
def test_where_collectives_start_and_are_waited_for(text, bounds, order):
    placement = place(text, bounds)
    assert not placement.unchanged_reason
    assert " ".join((*placement.graph.calls[index].outputs, "return")[0] for index in placement.schedule.order) == order
    assert [len(step) for step in placement.schedule.steps] == [1] * len(placement.graph.calls)


def test_gathers_start_in_order_of_need_and_are_waited_for_where_they_are_used():
    assert place(FORWARD, Bounds(72, 72)).timeline().splitlines() == [
        "gather   f1 = all_gather(w1)                      # 64 B in flight",
        "wait     p1 = wait(f1)                            # 0 B in flight",
        "gather   f2 = all_gather(w2)                      # 8 B in flight",
        "gather   f3 = all_gather(w3)                      # 72 B in flight",
        "compute  x1 = embed(tokens, p1)",
        "wait     p2 = wait(f2)                            # 64 B in flight",
        "view     v2 = expand(p2)",
        "compute  x2 = norm(x1, v2)",
        "wait     p3 = wait(f3)                            # 0 B in flight",
        "compute  y = linear(x2, p3)",
        "compute  return(y, x1, x2, p3)",
    ]


NOT_UNDERSTOOD = {
    "gather f = all_gather(w)\ncompute return(x)": "a collective has no wait, or a wait no collective",
    "wait p = wait(f)\ncompute return(p)": "a collective has no wait, or a wait no collective",
    "gather f = all_gather(w)\ncompute y = add(f)\ncompute return(y)": (
        "the result of a collective is used by something else than one wait"
    ),
    "compute y = add(x)\ncompute y = add(x)\ncompute return(y)": "a value is defined twice, or too late",
    "compute return(x)": "there is no collective",
}


@pytest.mark.parametrize(("text", "reason"), NOT_UNDERSTOOD.items())
def test_what_is_not_understood_keeps_its_order(text, reason):
    placement = place(text, Bounds(8, 8))
    assert placement.unchanged_reason == reason
    assert placement.schedule.order == tuple(range(len(placement.graph.calls)))


def test_a_placement_tells_what_was_gained():
    assert str(place(BACKWARD, Bounds(72, 72))) == (
        "3 collectives in 3 calls: gathers in flight 0 B at most (0 B as Thunder ordered them), reduces 72 B (136 B), "
        "what travels alive 172 B (236 B)"
    )


def test_in_a_timeline_each_collective_lasts_from_its_start_to_its_wait():
    placement = place(FORWARD, Bounds(sys.maxsize, sys.maxsize))
    timeline = placement.describe()
    assert timeline.calls[:6] == ("all_gather", "wait", "all_gather", "all_gather", "embed", "wait")
    ways = [(flight.name, flight.start, flight.end, flight.beside) for flight in timeline.flights]
    assert ways == [("all_gather", 0, 1, 0), ("all_gather", 2, 5, 1), ("all_gather", 3, 8, 2)]
    assert max(timeline.alive) == placement.after().alive
    assert timeline.alive[-1] == 64  # the returned value


def test_a_bound_costs_what_starts_later_for_it():
    (cost,) = place(FORWARD, Bounds(64, 64)).describe().bounds
    assert (cost.name, cost.bound, cost.most, cost.without, cost.delayed) == ("gathers in flight", 64, 64, 72, 1)


def test_collectives_that_travel_together_start_in_one_step():
    timeline = place(FORWARD, Bounds(1024, 1024, 72)).describe()
    starts = [flight.start for flight in timeline.flights]
    assert len(set(starts)) < len(starts) and len(timeline.calls) == len(timeline.alive)


SIZES = st.sampled_from([0, 1, 8, 8, 64, 100])
LAYERS = st.lists(SIZES.filter(bool), min_size=1, max_size=12)


@st.composite
def call_graphs(draw: st.DrawFn) -> CallGraph:
    """Draws calls of every kind, with each wait anywhere after its collective."""
    inputs = [f"i{number}" for number in range(draw(st.integers(1, 5)))]
    values, futures, calls = list(inputs), [], []
    sizes = {name: draw(SIZES) for name in inputs}

    def add(kind: Kind, name: str, takes: Sequence[str], **more) -> str:
        result = f"v{len(calls)}"
        sizes[result] = draw(SIZES)
        calls.append(CallNode(kind, name, tuple(takes), (result,), **more))
        return result

    def end(future: str) -> None:
        futures.remove(future)
        values.append(add(Kind.WAIT, "wait", [future]))

    recent = st.deferred(lambda: st.sampled_from(values[-4:] + values))
    kinds = ["gather", "gather", "reduce", "reduce", "compute", "compute", "divide", "view", "wait", "wait", "random"]
    for _ in range(draw(st.integers(1, 25))):
        kind = draw(st.sampled_from(kinds))
        if kind == "gather":
            channel = draw(st.sampled_from("ab"))
            futures.append(add(Kind.GATHER, "all_gather", [draw(recent)], channel=f"gather {channel}", message=channel))
        elif kind == "reduce":
            futures.append(add(Kind.REDUCE, "all_reduce", [draw(recent)], channel="reduce", message="r"))
        elif kind == "wait" and futures:
            end(draw(st.sampled_from(futures)))
        elif kind == "view":
            values.append(add(Kind.VIEW, "view", [draw(recent)]))
        else:
            taken = [draw(recent)] if kind == "divide" else draw(st.lists(recent, max_size=3))
            values.append(add(Kind.COMPUTE, kind, taken, fixed=kind == "random"))
    for future in tuple(futures):
        end(future)
    calls.append(CallNode(Kind.COMPUTE, "return", tuple(dict.fromkeys(draw(st.lists(recent, max_size=4))))))
    return CallGraph(tuple(calls), sizes)


@st.composite
def sharded_forwards(draw: st.DrawFn) -> CallGraph:
    """Draws a forward pass as Thunder 0.2.6 leaves it: all gathers first, and all gathered values saved."""
    sizes = draw(LAYERS)
    lines = [
        f"gather f{layer}:{sizes[layer]} = all_gather(w{layer})" for layer in draw(st.permutations(range(len(sizes))))
    ]
    lines += [f"wait p{layer}:{size} = wait(f{layer})" for layer, size in enumerate(sizes)]
    lines += [f"compute x{layer + 1}:8 = layer(x{layer}, p{layer})" for layer in range(len(sizes))]
    returned = [f"x{len(sizes)}", *(f"p{layer}" for layer in range(len(sizes)))]
    return read_calls("\n".join([*lines, f"compute return({', '.join(returned)})"]))


@st.composite
def sharded_backwards(draw: st.DrawFn) -> CallGraph:
    """Draws a backward pass as of Thunder 0.2.6: reduces last, each after a division; reduces of copies at the end."""
    sizes, lines = draw(LAYERS), []
    for layer, size in enumerate(sizes):
        lines.append(f"compute d{layer}:{size} = weight_gradient(g{layer}, x{layer})")
        lines.append(f"compute g{layer + 1}:8 = gradient(g{layer}, p{layer})")
    for layer in draw(st.permutations(range(len(sizes)))):
        lines.append(f"compute a{layer}:{sizes[layer]} = div(d{layer})")
        lines.append(f"reduce r{layer}:{sizes[layer] // 2} = reduce_scatter(a{layer})")
    lines += [f"wait s{layer}:{size // 2} = wait(r{layer})" for layer, size in enumerate(sizes)]
    has_copies = draw(st.booleans())
    for layer, size in enumerate(sizes if has_copies else ()):
        lines.append(f"reduce q{layer}:{size // 2} = all_reduce(s{layer})")
        lines.append(f"wait t{layer}:{size // 2} = wait(q{layer})")
    returned = ", ".join(f"{'t' if has_copies else 's'}{layer}" for layer in range(len(sizes)))
    graph = read_calls("\n".join([*lines, f"compute return({returned})"]))
    # Reduces of the two kinds are not sent together.
    calls = (replace(call, channel=call.name, message=call.name) if call.channel else call for call in graph.calls)
    return replace(graph, calls=tuple(calls))


sharded = st.one_of(sharded_forwards(), sharded_backwards())
graphs = st.one_of(call_graphs(), sharded)
bounds = st.builds(Bounds, SIZES, SIZES, SIZES)

fewer = settings(max_examples=40)


@fewer
@given(graphs, bounds)
def test_calls_take_what_was_given_before_and_what_computes_keeps_its_order(graph, bounds):
    found = schedule_calls(graph, bounds)
    assert sorted(found.order) == list(range(len(graph.calls)))
    producers, given = find_producers(graph.calls), set()
    for index in found.order:
        assert all(name in given for name in graph.calls[index].inputs if name in producers)
        given.update(graph.calls[index].outputs)
    movable = find_movable(graph.calls)
    assert not any(moves for moves, call in zip(movable, graph.calls, strict=True) if call.fixed)
    kept = [index for index in found.order if not movable[index]]
    assert kept == sorted(kept)


@fewer
@given(graphs, bounds)
def test_what_is_in_flight_and_what_travels_together_has_a_bound(graph, bounds):
    found = schedule_calls(graph, bounds)
    peaks = measure_peaks(graph, found.order)
    assert peaks.alive <= measure_peaks(graph, range(len(graph.calls))).alive
    messages = {kind: [0] for kind in COLLECTIVES}
    for step in found.steps:
        size = sum(map(graph.message_bytes, step))
        if (kind := graph.calls[step[0]].kind) in COLLECTIVES:
            messages[kind].append(size)
        if len(step) > 1:
            assert len({(graph.calls[index].kind, graph.calls[index].channel) for index in step}) == 1
            assert size <= bounds.batch
    if not found.reason:
        assert peaks.gathering <= max(bounds.gathering, *messages[Kind.GATHER])
        assert peaks.reducing <= max(bounds.reducing, *messages[Kind.REDUCE])


@fewer
@given(graphs, bounds, SIZES)
def test_the_sequence_does_not_depend_on_names_or_on_what_stays_on_a_rank(graph, bounds, size):
    moving = [call for moves, call in zip(find_movable(graph.calls), graph.calls, strict=True) if moves]
    travels = {name for call in moving for name in (*call.inputs, *call.outputs)}
    travels -= {name for call in graph.calls if call.kind is Kind.VIEW for name in call.outputs}
    travels |= {name for call in graph.calls if call.kind in COLLECTIVES for name in call.inputs}
    sizes = {f"n{name}": bytes_ if name in travels else size for name, bytes_ in graph.sizes.items()}
    fields = ("inputs", "outputs")
    calls = [
        replace(call, name="other", **{field: tuple(f"n{name}" for name in getattr(call, field)) for field in fields})
        for call in graph.calls
    ]
    other = CallGraph(tuple(calls), sizes)
    found = schedule_calls(graph, bounds)
    assert found == schedule_calls(other, bounds)
    assert measure_peaks(graph, found.order) == measure_peaks(other, found.order)


@fewer
@given(sharded, bounds)
def test_a_sharded_model_is_scheduled(graph, bounds):
    assert not schedule_calls(graph, bounds).reason
