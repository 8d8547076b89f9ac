"""Random calls and collectives: what every schedule of them keeps to."""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from written_calls import read_calls

from fusioncache.accelerators.schedule.calls import (
    COLLECTIVES,
    CallGraph,
    CallNode,
    Kind,
    find_makers,
    find_movable,
    measure_peaks,
)
from fusioncache.accelerators.schedule.order import Bounds, schedule_calls

SIZES = st.sampled_from([0, 1, 8, 8, 64, 100])
LAYERS = st.lists(SIZES.filter(bool), min_size=1, max_size=12)


@st.composite
def call_graphs(draw: st.DrawFn) -> CallGraph:
    """Calls of every kind with waits anywhere behind their collectives."""
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
    """A forward pass as Thunder 0.2.6 leaves it: all gathers first, all that was gathered is saved."""
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
    """A backward pass as Thunder 0.2.6 leaves it: reduces last, each behind a division; copies of shards at the end."""
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
    # Reduces of the two kinds do not travel together.
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
    makers, given = find_makers(graph.calls), set()
    for index in found.order:
        assert all(name in given for name in graph.calls[index].takes if name in makers)
        given.update(graph.calls[index].gives)
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


@fewer
@given(sharded, bounds)
def test_a_sharded_model_is_scheduled(graph, bounds):
    assert not schedule_calls(graph, bounds).reason
