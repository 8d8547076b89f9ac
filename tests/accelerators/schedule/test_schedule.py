"""Schedules of small programs, as text: calls in, steps out."""

import pytest
from written_calls import read_calls

from fusioncache.accelerators.schedule.order import Bounds, Placement, schedule_calls, write_schedule

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


def schedule(text: str, bounds: Bounds) -> str:
    graph = read_calls(text)
    found = schedule_calls(graph, bounds)
    assert not found.reason
    return write_schedule(graph, found) + "\n"


def test_gathers_start_in_order_of_need_and_are_waited_for_where_they_are_used():
    assert schedule(FORWARD, Bounds(72, 72)) == (
        "gather   f1 = all_gather(w1)                      # 64 B in flight\n"
        "wait     p1 = wait(f1)                            # 0 B in flight\n"
        "gather   f2 = all_gather(w2)                      # 8 B in flight\n"
        "gather   f3 = all_gather(w3)                      # 72 B in flight\n"
        "compute  x1 = embed(tokens, p1)\n"
        "wait     p2 = wait(f2)                            # 64 B in flight\n"
        "view     v2 = expand(p2)\n"
        "compute  x2 = norm(x1, v2)\n"
        "wait     p3 = wait(f3)                            # 0 B in flight\n"
        "compute  y = linear(x2, p3)\n"
        "compute  return(y, x1, x2, p3)\n"
    )


def test_a_bound_holds_gathers_back():
    assert schedule(FORWARD, Bounds(64, 64)) == (
        "gather   f1 = all_gather(w1)                      # 64 B in flight\n"
        "wait     p1 = wait(f1)                            # 0 B in flight\n"
        "gather   f2 = all_gather(w2)                      # 8 B in flight\n"
        "compute  x1 = embed(tokens, p1)\n"
        "wait     p2 = wait(f2)                            # 0 B in flight\n"
        "view     v2 = expand(p2)\n"
        "gather   f3 = all_gather(w3)                      # 64 B in flight\n"
        "compute  x2 = norm(x1, v2)\n"
        "wait     p3 = wait(f3)                            # 0 B in flight\n"
        "compute  y = linear(x2, p3)\n"
        "compute  return(y, x1, x2, p3)\n"
    )


def test_reduces_start_behind_what_they_add_up_with_their_divisions():
    assert schedule(BACKWARD, Bounds(72, 72)) == (
        "compute  x1, x2, p3 = unpack(saved)\n"
        "compute  g2 = matmul(g, p3)\n"
        "compute  d3 = matmul(g, x2)\n"
        "compute  a3 = div(d3)\n"
        "reduce   r3 = reduce_scatter(a3)                  # 64 B in flight\n"
        "compute  g1, d2 = norm_backward(g2, x1)\n"
        "compute  a2 = div(d2)\n"
        "reduce   r2 = reduce_scatter(a2)                  # 72 B in flight\n"
        "compute  d1 = embedding_backward(g1, tokens)\n"
        "wait     s3 = wait(r3)                            # 8 B in flight\n"
        "compute  a1 = div(d1)\n"
        "reduce   r1 = reduce_scatter(a1)                  # 72 B in flight\n"
        "wait     s1 = wait(r1)                            # 8 B in flight\n"
        "wait     s2 = wait(r2)                            # 0 B in flight\n"
        "compute  return(s1, s2, s3)\n"
    )


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
"""Of two copies of the shards, of which each averages its gradients with the other."""


def test_what_copies_of_shards_reduce_starts_two_reduces_behind_that_between_the_shards():
    assert schedule(COPIES, Bounds(600, 600)) == (
        "compute  d3 = matmul(g, x3)\n"
        "reduce   r3 = reduce_scatter(d3)                  # 64 B in flight\n"
        "compute  g2 = layer(g, p3)\n"
        "compute  d2 = matmul(g2, x2)\n"
        "reduce   r2 = reduce_scatter(d2)                  # 128 B in flight\n"
        "compute  g1 = layer(g2, p2)\n"
        "compute  d1 = matmul(g1, x1)\n"
        "reduce   r1 = reduce_scatter(d1)                  # 192 B in flight\n"
        "wait     s3 = wait(r3)                            # 128 B in flight\n"
        "compute  b3 = div(s3)\n"
        "reduce   q3 = all_reduce(b3)                      # 160 B in flight\n"
        "compute  g0 = layer(g1, p1)\n"
        "wait     s2 = wait(r2)                            # 96 B in flight\n"
        "compute  b2 = div(s2)\n"
        "reduce   q2 = all_reduce(b2)                      # 128 B in flight\n"
        "wait     s1 = wait(r1)                            # 64 B in flight\n"
        "compute  b1 = div(s1)\n"
        "reduce   q1 = all_reduce(b1)                      # 96 B in flight\n"
        "wait     t1 = wait(q1)                            # 64 B in flight\n"
        "wait     t2 = wait(q2)                            # 32 B in flight\n"
        "wait     t3 = wait(q3)                            # 0 B in flight\n"
        "compute  return(t1, t2, t3, g0)\n"
    )


def test_what_something_computed_needs_travels_at_once():
    text = """
    compute a:8 = matmul(x, w)
    reduce  r:8 = all_reduce(a)
    wait    s:8 = wait(r)
    compute d:8 = matmul(x, v)
    reduce  q:8 = all_reduce(d)
    wait    t:8 = wait(q)
    compute y:8 = norm(s)
    compute return(y, t)
    """
    lines = schedule(text, Bounds(200, 200, 200)).splitlines()
    assert [line.split("#")[0].strip() for line in lines[:3]] == [
        "compute  a = matmul(x, w)",
        "reduce   r = all_reduce(a)",
        "compute  d = matmul(x, v)",
    ]
    assert not any("+" in line for line in lines)


@pytest.mark.parametrize(
    "text, reason",
    [
        ("gather f = all_gather(w)\ncompute return(x)", "a collective has no wait, or a wait no collective"),
        ("wait p = wait(f)\ncompute return(p)", "a collective has no wait, or a wait no collective"),
        (
            "gather f = all_gather(w)\ncompute y = add(f)\ncompute return(y)",
            "the result of a collective is used by something else than one wait",
        ),
        (
            "compute y = add(x)\ncompute y = add(x)\ncompute return(y)",
            "a value is defined twice, or too late",
        ),
        ("compute return(x)", "there is no collective"),
    ],
)
def test_what_is_not_understood_keeps_its_order(text, reason):
    graph = read_calls(text)
    found = schedule_calls(graph, Bounds(8, 8))
    assert found.reason == reason
    assert found.order == tuple(range(len(graph.calls)))


def test_a_placement_tells_what_was_gained():
    graph = read_calls(BACKWARD)
    bounds = Bounds(72, 72)
    placement = Placement(graph, schedule_calls(graph, bounds), bounds)
    assert placement.before().alive > placement.after().alive
    assert str(placement) == (
        "3 collectives in 3 calls: gathers in flight 0 B at most (0 B as Thunder ordered them), reduces 72 B (136 B), "
        "what travels alive 172 B (236 B)"
    )
    assert placement.timeline() == write_schedule(graph, placement.schedule)
