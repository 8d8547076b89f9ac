"""Schedules as timelines, and what their bounds cost."""

import sys

from written_calls import read_calls

from fusioncache.accelerators.schedule.calls import measure_peaks
from fusioncache.accelerators.schedule.order import Bounds, Placement, schedule_calls

GRAPH = read_calls(
    """
    gather  f1:64 = all_gather(w1:32)
    gather  f2:64 = all_gather(w2:32)
    gather  f3:64 = all_gather(w3:32)
    wait    p1:64 = wait(f1)
    wait    p2:64 = wait(f2)
    wait    p3:64 = wait(f3)
    compute x1:16 = embed(tokens, p1)
    compute x2:16 = linear(x1, p2)
    compute y:16 = linear(x2, p3)
    compute return(y)
    """
)
FREE = Bounds(sys.maxsize, sys.maxsize)


def describe(bounds, schedule=None):
    return Placement(GRAPH, schedule or schedule_calls(GRAPH, bounds), bounds).describe()


def test_each_collective_lasts_from_its_start_to_its_wait():
    timeline = describe(FREE)
    assert timeline.calls == (
        *("all_gather", "wait", "all_gather", "all_gather", "embed", "wait", "linear", "wait", "linear", "return"),
    )
    ways = [(flight.name, flight.start, flight.end, flight.beside) for flight in timeline.flights]
    assert ways == [("all_gather", 0, 1, 0), ("all_gather", 2, 5, 1), ("all_gather", 3, 7, 2)]
    assert max(timeline.alive) == measure_peaks(GRAPH, schedule_calls(GRAPH, FREE).order).alive == 192
    assert timeline.alive[-1] == 0


def test_a_bound_costs_what_starts_later_for_it():
    (cost,) = describe(Bounds(64, 64)).bounds
    assert (cost.name, cost.bound, cost.most, cost.without, cost.delayed) == ("gathers in flight", 64, 64, 128, 1)


def test_collectives_that_travel_together_start_in_one_step():
    bounds = Bounds(1024, 1024, 128)
    schedule = schedule_calls(GRAPH, bounds)
    timeline = describe(bounds, schedule)
    starts = [flight.start for flight in timeline.flights]
    assert len(set(starts)) < len(starts) and len(timeline.calls) == len(schedule.steps) == len(timeline.alive)
