"""Residual sums that are not saved for backward: the same bits, fewer bytes, no more templates with depth."""

import functools
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import pytest
import thunder
import torch
from models import are_same, compile_plain, compile_with, find_fused
from residual_stacks import SIZE, Stack, train
from thunder.core.transform_common import Transform
from torch.utils._pytree import tree_leaves

import fusioncache
from fusioncache.accelerators.residual.plans import ResidualPlan
from fusioncache.accelerators.residual.rebuild import UNROUNDED, UNSAVED
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


@pytest.mark.parametrize("kind", ["post", "mixed"])
def test_torchinductor_keeps_every_bit(kind):
    model, x = stack(kind, 2)
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


class Written(torch.nn.Module):
    """A sum that backward needs, of one value that it needs otherwise, and one that it may not need."""

    def __init__(self, needs_x: bool):
        super().__init__()
        self.needs_x = needs_x
        self.w = torch.nn.Parameter(torch.randn(4, 4, generator=torch.Generator().manual_seed(0)))

    def forward(self, x, m):
        total = x + torch.tanh(self.w)
        return (total @ m, x * m) if self.needs_x else total @ m


def gradients(compiled, how: str, what: str, requires_grad: bool) -> list[torch.Tensor] | str:
    """The gradients of a step between whose halves something is written; or what was raised."""
    torch.manual_seed(0)
    tensors = {name: torch.randn(4, 4, requires_grad=requires_grad or name != "x") for name in ("x", "m")}
    compiled.zero_grad()
    outputs = tree_leaves(compiled(*tensors.values()))
    target = outputs[0] if what == "output" else tensors[what]
    with torch.no_grad():
        (target.data if how == ".data" else target).mul_(3)
    try:
        sum(output.sum() for output in outputs).backward()
    except RuntimeError as error:
        return str(error).partition(":")[0]
    return [each.grad.clone() for each in (*tensors.values(), *compiled.parameters()) if each.grad is not None]


@pytest.mark.parametrize("needs_x", [False, True], ids=["x is only added", "x is saved"])
def test_what_is_written_between_forward_and_backward_matters_as_much_as_before(needs_x):
    plain = compile_with(Written(needs_x))[0]
    rebuilding, transform = compile_with(Written(needs_x), recompute="residual", residual="inline")
    raised = 0
    for what, requires_grad, how in product(("x", "output"), (True, False), ("no_grad", ".data")):
        one, other = (gradients(compiled, how, what, requires_grad) for compiled in (plain, rebuilding))
        raised += isinstance(one, str)
        if needs_x and what == "x" and how == ".data":
            continue  # a saved value is changed behind autograd's back: both are wrong, each in its way
        assert are_same(one, other) if not isinstance(one, str) else one == other, (what, requires_grad, how)
    assert raised == (2 if needs_x else 0)
    assert transform.stats().bypasses == ({} if needs_x else {UNSAVED: 2})
    assert bool(transform.choices()) is needs_x


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


class Collect(Transform):
    """Keeps the traces of a model as they come."""

    def __init__(self):
        super().__init__()
        self.traces = []

    def transform_trace_post_optimization(self, trace, **kwargs):
        self.traces.append(trace)
        return trace


def traces_of(depth: int):
    """The forward and the backward trace of a stack."""
    model, x = stack("post", depth)
    collect = Collect()
    train(model, thunder.jit(model, executors=fusioncache.executors(), transforms=[collect]), x)
    return collect.traces


@pytest.mark.parametrize("order", ["fFbB", "fFB", "FfBb"])
def test_traces_of_two_models_may_come_in_any_order(order):
    """Of the models f and F the forward traces, then the backward traces b and B: one of them may never come."""
    transform = fusioncache.FusionCache(cache=fusioncache.Cache(record=False), backend="eager", recompute="residual")
    models, new = {"f": traces_of(4), "F": traces_of(5)}, {}
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
