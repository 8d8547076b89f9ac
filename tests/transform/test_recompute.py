"""Residual sums that are carried, or not saved: the same bits, fewer bytes, no more templates with depth."""

import functools
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
import thunder
import torch
from models import Blocks, Residual, are_same, compile_plain, compile_with, find_all_fused, find_fused, recompute, step
from residual_stacks import SIZE, Stack, train

import fusioncache
from fusioncache.accelerators.residual.plans import ResidualPlan
from fusioncache.accelerators.residual.rebuild import UNROUNDED, VARIES
from fusioncache.backends.eager import Eager
from fusioncache.backends.inductor.backend import Inductor
from fusioncache.observe.record.observations import RegionRecord
from fusioncache.transform.handover import Handover

pytestmark = pytest.mark.usefixtures("eager_regions")
KINDS = ("pre", "post", "both", "parallel", "scaled", "gated", "dropout", "outputs", "two", "mixed", "none")
REBUILT = {"post", "both", "parallel", "scaled", "gated", "dropout", "two", "mixed"}


def stack(kind: str, depth: int = 4, dtype=torch.float32) -> tuple[Stack, torch.Tensor]:
    torch.manual_seed(3)
    model = Stack(kind, depth).to(dtype) if kind != "mixed" else Stack(kind, depth)
    return model, torch.randn(4, SIZE, dtype=dtype)


def saved(compiled) -> dict[str, int]:
    values, (tensors, _) = thunder.last_traces(compiled)[-1].bound_symbols[-1].args
    inputs = {proxy.name for proxy in values["flat_args"]}
    return {proxy.name: proxy.numel * proxy.dtype.bytes for proxy in tensors if proxy.name not in inputs}


@functools.cache
def reference(kind: str, depth: int = 4, dtype=torch.float32) -> tuple[list[torch.Tensor], dict[str, int]]:
    """What a step of this stack computes, and what it saves, where nothing is recomputed: traced once for all tests."""
    model, x = stack(kind, depth, dtype)
    plain, transform = compile_with(model)
    results = train(model, plain, x)
    assert not transform.choices()
    return results, saved(plain)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("scaled", "none")])
def test_kinds_of_streams_keep_every_bit(kind):
    """In bfloat16, which rounds the most; one is of two dtypes already. On a GPU it is all kinds."""
    dtype = torch.float32 if kind == "mixed" else torch.bfloat16
    model, x = stack(kind, dtype=dtype)
    expected, before = reference(kind, dtype=dtype)
    compiled, transform = compile_with(model, recompute="residual")
    assert are_same(train(model, compiled, x), expected)
    assert not transform.stats().bypasses
    after = saved(compiled)
    if kind in REBUILT:
        assert sum(after.values()) < sum(before.values())
        assert after.keys() <= before.keys()
    else:
        assert after == before
        assert all(choice.plan is ResidualPlan.CARRY for choice in transform.choices())


# Two branches in the plan that takes a stream apart in the most ways: with the plan that is chosen, they are above.
@pytest.mark.parametrize(
    ("kind", "residual"), [*(("post", plan.value) for plan in ResidualPlan), ("parallel", "segmented")]
)
def test_every_plan_keeps_every_bit(kind, residual):
    model, x = stack(kind)
    compiled, transform = compile_with(model, recompute="residual", residual=residual)
    assert are_same(train(model, compiled, x), reference(kind)[0])
    assert transform.choices()


def test_torchinductor_keeps_every_bit():
    model, x = stack("mixed", 2)
    expected = train(model, compile_with(model, "inductor")[0], x)
    compiled, transform = compile_with(model, "inductor", recompute="residual", residual="inline")
    assert are_same(train(model, compiled, x), expected)
    assert transform.choices() and not transform.stats().bypasses


@pytest.mark.parametrize(("kind", "dtype"), [("post", torch.bfloat16), ("gated", torch.float16)])
def test_what_torchinductor_would_not_round_is_left_alone(kind, dtype, monkeypatch):
    monkeypatch.setattr(Inductor, "compile", Eager.compile)
    model, x = stack(kind, 2, dtype)
    compiled, transform = compile_with(model, "inductor", recompute="residual", residual="inline")
    train(model, compiled, x)
    assert not transform.choices()
    assert transform.stats().bypasses == {UNROUNDED: 1}


def choose(depth: int, sums: int | None = None):
    """Returns the chosen plan, how many sums are alive at most with a budget of some, and the number of templates."""
    model, x = stack("post", depth)
    size = 4 * SIZE * 4
    options = {} if sums is None else {"memory_budget": sums * size}
    compiled, transform = compile_with(model, recompute="residual", **options)
    train(model, compiled, x)
    (choice,) = transform.choices()
    return choice.plan, choice.costs[choice.plan].alive // size, transform.stats().templates


def test_neither_templates_nor_live_sums_follow_the_depth_and_a_budget_keeps_as_many_sums_as_fit():
    (plan, few, templates), (same_plan, more, same_templates) = choose(9), choose(16)
    assert plan is same_plan is ResidualPlan.SEGMENTED
    assert templates == same_templates
    assert few < more <= 2 * 4 + 1
    (_, least, _), (plan, most, _) = choose(9, 6), choose(9, 100)
    assert plan is ResidualPlan.CARRY
    assert least <= 6 and least < most <= 100


def traces_of(depth: int):
    model, x = stack("post", depth)
    compiled = compile_plain(model)
    train(model, compiled, x)
    return thunder.last_traces(compiled)[-1], thunder.last_backward_traces(compiled)[-1]


@pytest.mark.parametrize("order", ["fFbB", "fFB", "FfBb"])
def test_traces_of_two_models_may_come_in_any_order(order):
    """Of the models f and F the forward traces, then the backward traces b and B: one of them may never come."""
    transform = fusioncache.FusionCache(cache=fusioncache.Cache(record=False), backend="eager", recompute="residual")
    models, new = {"f": traces_of(4), "F": traces_of(5)}, {}
    for name in order:
        trace = models["f" if name in "fb" else "F"][name in "bB"]
        new[name] = transform.transform_trace_post_optimization(trace)
    assert not transform.stats().bypasses
    for forward, backward in (("f", "b"), ("F", "B")):
        _, (left, _) = new[forward].bound_symbols[-1].args
        assert len(left) < len(models[forward][0].bound_symbols[-1].args[1][0])
        if backward in new:
            assert [proxy.name for proxy in new[backward].args[0][0]] == [proxy.name for proxy in left]
    regions = transform.cache.ledger.history.records(RegionRecord)
    counts = Counter((region.trace, region.trace_number) for region in regions)
    numbers = {name: number for number, name in enumerate(name for name in order if name in "fF")}
    for name, trace in new.items():
        key = ("forward", numbers[name]) if name in "fF" else ("backward", numbers["f" if name == "b" else "F"])
        assert counts[key] == len(find_fused(trace))


@pytest.mark.parametrize("depths", [(3, 3), (3, 4)], ids=["one function", "two functions"])
def test_threads_that_compile_at_once_each_get_their_own(depths, monkeypatch):
    both_wait, put = threading.Barrier(2, timeout=120), Handover.put

    def put_and_wait(self, trace, state):
        put(self, trace, state)
        both_wait.wait()

    def differentiate(function, x):
        x = x.clone().requires_grad_()
        return torch.autograd.grad(function(x).sum(), x)

    stacks = {depth: stack("post", depth) for depth in depths}
    transform = fusioncache.FusionCache(cache=fusioncache.Cache(record=False), backend="eager", recompute="residual")
    options = {"executors": fusioncache.executors(), "transforms": [transform]}
    compiled = {depth: thunder.jit(model, **options) for depth, (model, _) in stacks.items()}
    monkeypatch.setattr(Handover, "put", put_and_wait)
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(lambda depth: differentiate(compiled[depth], stacks[depth][1]), depths))
    expected = [differentiate(compile_plain(stacks[depth][0]), stacks[depth][1]) for depth in depths]
    assert all(map(are_same, found, expected))
    assert not transform.stats().bypasses and len(transform.choices()) == 2


def test_a_forward_trace_that_fails_leaves_its_sums_saved(monkeypatch):
    model, x = stack("post", 3)
    compiled, transform = compile_with(model, recompute="residual")
    monkeypatch.setattr("fusioncache.transform.provenance.trace_notes.TraceNotes.record_choice", lambda *_: 1 / 0)
    with pytest.warns(RuntimeWarning, match="a trace stays as Thunder made it"):
        assert are_same(train(model, compiled, x), train(model, compile_plain(model), x))
    assert transform.stats().bypasses == {"failed: ZeroDivisionError": 1}


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_stream_keeps_every_bit_on_the_gpu(kind, dtype):
    if kind == "mixed" and dtype is torch.bfloat16:
        pytest.skip("it is of two dtypes already")
    model, x = stack(kind, dtype=dtype)
    model, x = model.cuda(), torch.randn(64, SIZE, device="cuda", dtype=dtype)
    expected = train(model, thunder.jit(model, executors=fusioncache.executors()), x)
    compiled, transform = compile_with(model, "nvfuser", recompute="residual")
    assert are_same(train(model, compiled, x), expected)
    assert transform.choices() if kind in REBUILT - {"dropout"} else True


CARRY, SEGMENTED = ResidualPlan.CARRY, ResidualPlan.SEGMENTED


def train_recomputed(model, x, **options):
    with recompute():
        compiled, transform = compile_with(model, **options)
        return step(compiled, model, x), transform, compiled


def train_plain(model, x) -> list[torch.Tensor]:
    with recompute():
        return step(compile_plain(model), model, x)


def plans(transform) -> list[ResidualPlan]:
    return [choice.plan for choice in transform.choices()]


def made(*types, layers: int, dtype=torch.bfloat16):
    """Returns a model with streams, and its input. Backward may not save the input, so a stream starts behind it.

    In float32 Thunder saves what backward needs.
    """
    torch.manual_seed(0)
    parts = [part for each in types for part in (torch.nn.Linear(10, 10, bias=False), each(layers, 10))]
    return torch.nn.Sequential(*parts).to(dtype), torch.randn(10, 10).to(dtype)


@pytest.mark.parametrize("types", [[Residual], [Blocks], [Residual, Residual]], ids=["sums", "blocks", "two streams"])
def test_every_bit_of_a_recomputed_model_stays_as_it_was(types):
    model, x = made(*types, layers=5)
    expected = train_plain(model, x)
    for wanted in (CARRY, SEGMENTED):
        result, transform, _ = train_recomputed(model, x, residual=wanted.value)
        assert are_same(result, expected) and not transform.stats().bypasses
        streams = len(types)
        assert len(plans(transform)) == 2 * streams and plans(transform)[streams:] == [wanted] * streams


def test_calls_do_not_grow_with_depth():
    def most(layers, wanted):
        model, x = made(Residual, layers=layers)
        _, transform, compiled = train_recomputed(model, x, residual=wanted.value)
        backward = find_fused(thunder.last_backward_traces(compiled)[-1])
        assert plans(transform)[1:] == [wanted]
        return max(len(call.args) for call in backward), transform.stats().templates

    assert most(4, CARRY) == most(6, CARRY) == (4, 6)
    # A step takes a sum and a segment's terms, as many as the square root of the depth.
    assert [most(layers, SEGMENTED)[0] for layers in (8, 18)] == [4, 6]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_streams_of_a_compiler_that_drops_roundings_are_carried_only_where_nothing_is_rounded(dtype, monkeypatch):
    monkeypatch.setattr(Inductor, "compile", Eager.compile)
    model, x = made(Residual, layers=4, dtype=dtype)
    result, transform, compiled = train_recomputed(model, x, backend="inductor", residual="carry")
    assert are_same(result, train_plain(model, x))
    assert plans(transform) == ([CARRY] if dtype is torch.float32 else [])
    assert transform.stats().bypasses == ({} if dtype is torch.float32 else {VARIES: 2})
    assert transform.stats().regions == len(find_all_fused(compiled))
