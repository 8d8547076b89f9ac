"""What a forward trace hands over to its backward trace, whatever else is compiled meanwhile."""

import gc
import threading
import weakref
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
import thunder
import torch
from models import are_same, find_fused
from residual_stacks import SIZE, Stack, train
from thunder.core.transform_common import Transform

import fusioncache
from fusioncache.observe.record.ledger import History
from fusioncache.observe.record.observations import RegionRecord
from fusioncache.transform.handover import ForwardState, Handover
from fusioncache.transform.provenance.source import Compilation
from fusioncache.transform.provenance.trace_notes import TraceNotes

pytestmark = pytest.mark.usefixtures("eager_regions")


class Collect(Transform):
    """Keeps the traces of a model as they come, and gives them sets of names of their own if told to."""

    def __init__(self, *, renames: bool = False):
        super().__init__()
        self.renames = renames
        self.traces = []

    def transform_trace_post_optimization(self, trace, **kwargs):
        if self.renames:
            trace.names = set(trace.names)
        self.traces.append(trace)
        return trace


def stack(depth: int) -> tuple[Stack, torch.Tensor]:
    torch.manual_seed(depth)
    return Stack("post", depth), torch.randn(4, SIZE)


def transform_with_recompute() -> fusioncache.FusionCache:
    return fusioncache.FusionCache(cache=fusioncache.Cache(record=False), backend="eager", recompute="residual")


def compile_with(model, *transforms):
    return thunder.jit(model, executors=fusioncache.executors(), transforms=list(transforms))


def traces_of(depth: int):
    """The forward and the backward trace of a stack."""
    model, x = stack(depth)
    collect = Collect()
    train(model, compile_with(model, collect), x)
    forward, backward = collect.traces
    return forward, backward


@pytest.mark.parametrize("order", ["fFbB", "fFB", "FfBb"])
def test_traces_of_two_models_may_come_in_any_order(order):
    """Of the models f and F the forward traces, then the backward traces b and B: one of them may never come."""
    transform, models = transform_with_recompute(), {"f": traces_of(4), "F": traces_of(5)}
    new = {}
    for step in order:
        trace = models["f" if step in "fb" else "F"][step in "bB"]
        new[step] = transform.transform_trace_post_optimization(trace)
    assert not transform.stats().bypasses
    for forward, backward in (("f", "b"), ("F", "B")):
        _, (left, _) = new[forward].bound_symbols[-1].args
        assert len(left) < len(models[forward][0].bound_symbols[-1].args[1][0])
        if backward in new:
            assert [proxy.name for proxy in new[backward].args[0][0]] == [proxy.name for proxy in left]
    regions = transform.cache.ledger.history.records(RegionRecord)
    counts = Counter((region.trace, region.trace_number) for region in regions)
    numbers = {step: number for number, step in enumerate(step for step in order if step in "fF")}
    for step, trace in new.items():
        key = ("forward", numbers[step]) if step in "fF" else ("backward", numbers["f" if step == "b" else "F"])
        assert counts[key] == len(find_fused(trace))


@pytest.mark.parametrize("depths", [(3, 3), (3, 4)], ids=["one function", "two functions"])
def test_threads_that_compile_at_once_each_get_their_own(depths, monkeypatch):
    both_wait, put = threading.Barrier(2, timeout=120), Handover.put

    def put_and_wait(self, trace, state):
        put(self, trace, state)
        both_wait.wait()

    def gradients(function, inputs):
        x = inputs.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(function(x).sum(), x)
        return gradient

    transform, stacks = transform_with_recompute(), {depth: stack(depth) for depth in depths}
    compiled = {depth: compile_with(stacks[depth][0], transform) for depth in stacks}
    monkeypatch.setattr(Handover, "put", put_and_wait)
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(lambda depth: gradients(compiled[depth], stacks[depth][1]), depths))
    monkeypatch.setattr(Handover, "put", put)
    assert are_same(found, [gradients(compile_with(stacks[depth][0]), stacks[depth][1]) for depth in depths])
    assert not transform.stats().bypasses and len(transform.choices()) == 2


def test_a_transform_that_renames_comes_between_no_trace_and_its_backward_trace():
    model, x = stack(3)
    expected = train(model, compile_with(model), x)
    transform = transform_with_recompute()
    assert are_same(train(model, compile_with(model, Collect(renames=True), transform), x), expected)
    assert transform.choices() and not transform.stats().bypasses


def test_nothing_stays_of_a_forward_trace_that_is_gone():
    class Token:
        pass

    handover, (forward, backward), (other, _) = Handover(), traces_of(2), traces_of(2)
    tokens = [Token(), Token()]
    alive = [weakref.ref(token) for token in tokens]
    noted = TraceNotes("forward", History(), 0, Compilation())
    for trace, token in zip((other, forward), tokens, strict=True):
        handover.put(trace, ForwardState(noted, token))
    del other, token, tokens, trace
    gc.collect()
    assert [token() is None for token in alive] == [True, False]
    assert handover.take(backward).generation is alive[1]()
    assert handover.take(backward) is None


def test_a_forward_trace_that_fails_leaves_its_sums_saved(monkeypatch):
    model, x = stack(3)
    expected = train(model, compile_with(model), x)
    transform = transform_with_recompute()
    monkeypatch.setattr("fusioncache.transform.provenance.trace_notes.TraceNotes.record_choice", lambda *_: 1 / 0)
    with pytest.warns(RuntimeWarning, match="a trace stays as Thunder made it"):
        assert are_same(train(model, compile_with(model, transform), x), expected)
    assert transform.stats().bypasses == {"failed: ZeroDivisionError": 1}
