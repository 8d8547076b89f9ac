"""Random calls and collectives: what every schedule of them keeps to."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from random_calls import SIZES, call_graphs, sharded_backwards, sharded_forwards

from fusioncache.accelerators.schedule.calls import (
    COLLECTIVES,
    CallGraph,
    Kind,
    find_makers,
    find_movable,
    measure_peaks,
)
from fusioncache.accelerators.schedule.order import Bounds, schedule_calls

sharded = st.one_of(sharded_forwards(), sharded_backwards())
graphs = st.one_of(call_graphs(), sharded)
bounds = st.builds(Bounds, SIZES, SIZES, SIZES)


@settings(max_examples=100)
@given(graphs, bounds)
def test_every_call_takes_what_was_given_before(graph, bounds):
    found = schedule_calls(graph, bounds)
    assert sorted(found.order) == list(range(len(graph.calls)))
    makers, given = find_makers(graph.calls), set()
    for index in found.order:
        assert all(name in given for name in graph.calls[index].takes if name in makers)
        given.update(graph.calls[index].gives)


@given(graphs, bounds)
def test_what_computes_keeps_its_order_and_so_do_random_numbers(graph, bounds):
    movable = find_movable(graph.calls)
    assert not any(moves for moves, call in zip(movable, graph.calls, strict=True) if call.fixed)
    kept = [index for index in schedule_calls(graph, bounds).order if not movable[index]]
    assert kept == sorted(kept)


@given(graphs, bounds)
def test_what_is_in_flight_has_a_bound(graph, bounds):
    found = schedule_calls(graph, bounds)
    if found.reason:
        return
    peaks = measure_peaks(graph, found.order)
    messages = {kind: [0] for kind in COLLECTIVES}
    for step in found.steps:
        if (kind := graph.calls[step[0]].kind) in COLLECTIVES:
            messages[kind].append(sum(map(graph.message_bytes, step)))
    assert peaks.gathering <= max(bounds.gathering, *messages[Kind.GATHER])
    assert peaks.reducing <= max(bounds.reducing, *messages[Kind.REDUCE])


@given(graphs, bounds)
def test_no_more_is_alive_of_what_travels_than_in_the_order_given(graph, bounds):
    found = schedule_calls(graph, bounds)
    assert measure_peaks(graph, found.order).alive <= measure_peaks(graph, range(len(graph.calls))).alive


@given(graphs, bounds)
def test_together_travels_what_has_one_channel_and_is_small(graph, bounds):
    for step in schedule_calls(graph, bounds).steps:
        if len(step) > 1:
            assert len({(graph.calls[index].kind, graph.calls[index].channel) for index in step}) == 1
            assert sum(map(graph.message_bytes, step)) <= bounds.batch


@given(graphs, bounds, SIZES)
def test_the_sequence_does_not_depend_on_names_or_on_what_stays_on_a_rank(graph, bounds, size):
    movable = find_movable(graph.calls)
    travels = {
        name for moves, call in zip(movable, graph.calls, strict=True) for name in (*call.takes, *call.gives) if moves
    }
    travels -= {name for call in graph.calls if call.kind is Kind.VIEW for name in call.gives}
    travels |= {name for call in graph.calls if call.kind in COLLECTIVES for name in call.takes}
    sizes = {f"n{name}": bytes_ if name in travels else size for name, bytes_ in graph.sizes.items()}
    fields = ("takes", "gives")
    calls = [
        replace(call, name="other", **{field: tuple(f"n{name}" for name in getattr(call, field)) for field in fields})
        for call in graph.calls
    ]
    other = CallGraph(tuple(calls), sizes)
    found = schedule_calls(graph, bounds)
    assert found == schedule_calls(other, bounds)
    assert measure_peaks(graph, found.order) == measure_peaks(other, found.order)


@given(sharded, bounds)
def test_a_sharded_model_is_scheduled(graph, bounds):
    assert not schedule_calls(graph, bounds).reason
