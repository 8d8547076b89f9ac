"""The cache in memory: bounds, threads, counts, layouts."""

import time
from functools import partial, reduce

import pytest
import torch
from drawn_regions import Sketch, draw, draw_residual
from threads_at_once import run_at_once

import fusioncache
from fusioncache.backends.eager import Eager
from fusioncache.cache import cache as cache_module
from fusioncache.cache.backend_executables import BackendExecutables, run_in_pieces
from fusioncache.cache.cache import Cache
from fusioncache.cache.call import Fallback, TemplateCall
from fusioncache.ir import Template, TensorType
from fusioncache.process.forks import LruMap
from fusioncache.template.canonical import canonicalize
from fusioncache.template.key import make_key
from fusioncache.template.plan import Plan
from fusioncache.template.writer import instance_of

A, B = torch.linspace(0, 1, 6).reshape(2, 3), torch.linspace(2, -1, 6).reshape(2, 3)


class CountingEager(Eager):
    """A backend that counts compiles; it selects layouts by strides, as nvFuser does. Slow, so that threads meet."""

    def __init__(self) -> None:
        self.compiled = 0

    def layout(self, layouts):
        return tuple(layout[1] for layout in layouts if layout is not None)

    def compile(self, graph, args):
        self.compiled += 1
        time.sleep(0.02)
        return super().compile(graph, args)


def tanh_graph():
    return canonicalize(draw("tanh(x)")).graph


def call_of(region, plan=Plan.INLINE, compiler=None, fallback=None):
    compiler = compiler or CountingEager()
    canonical = canonicalize(region)
    template = Template(canonical.graph, make_key(canonical.graph, {}), "named")
    cache = Cache(record=False, store=False)
    ledger = cache.ledger
    call = TemplateCall(template, BackendExecutables(compiler, cache, ledger))
    call.allow(canonical.binding.arities, plan, fallback or Fallback(lambda *args: pytest.fail("fell back"), (), ()))
    return call, canonical.binding, ledger, compiler


@pytest.mark.parametrize("what", ["the default cache", "a value of a map"])
def test_threads_that_ask_at_once_share(monkeypatch, what):
    def make():
        time.sleep(0.02)
        return object()

    monkeypatch.setattr(cache_module, "Cache", make)
    monkeypatch.setattr(cache_module, "default_caches", LruMap(1))
    lru, made = LruMap(8), []
    ask = cache_module.default_cache if what == "the default cache" else lambda: lru.get_or_make("a", make)[0]
    run_at_once(*[lambda: made.append(ask())] * 4)
    assert len(made) == 4 and len({*map(id, made)}) == 1


def test_threads_compile_once():
    call, _, ledger, compiler = call_of(draw_residual(2))
    args = [torch.randn(2, 3) for _ in range(3)]
    run_at_once(*[lambda: call.target.function(*args)] * 8)
    assert compiler.compiled == ledger.stats().compiles == 1


def test_a_bounded_cache_forgets_and_compiled_models_live_on():
    cache = fusioncache.Cache(capacity=1)
    one, hit = cache.template(tanh_graph(), {})
    assert not hit and cache.template(tanh_graph(), {}) == (one, True)
    cache.template(canonicalize(draw_residual(1)).graph, {})
    assert cache.template(tanh_graph(), {}) == (one, False)
    cache.clear()
    assert cache.template(tanh_graph(), {}) == (one, False)


def test_layouts_select_among_a_templates_variants():
    call, binding, ledger, compiler = call_of(draw("sub(x, tanh(y))", x=(4, 4), y=(4, 4)))
    a, b = torch.randn(4, 4), torch.randn(4, 4)
    for _ in range(2):
        for left, right in ((a, b), (a.t(), b), (a, b.t()), (a.t().contiguous(), b), (a[:, [1, 0, 2, 3]], b)):
            args = [(left, right)[position] for position in binding.arguments]
            assert torch.equal(call.target.function(*args)[0], left - torch.tanh(right))
    assert compiler.compiled == ledger.stats().compiles == 3


@pytest.mark.parametrize("plan", list(Plan))
def test_every_arity_gives_the_sum_in_order(plan):
    call, _, ledger, compiler = call_of(draw_residual(1), plan)
    for adds in range(1, 20):
        canonical = canonicalize(draw_residual(adds))
        call.allow(canonical.binding.arities, plan, Fallback(pytest.fail, (), ()))
        inputs = [torch.randn(2, 3) * 10**6 for _ in range(adds + 1)]
        total = reduce(torch.add, inputs)
        (result,) = call.target.function(*[inputs[position] for position in canonical.binding.arguments])
        assert torch.equal(result, torch.tanh(total))
    # Folds of 1, 2, 4, 8 and 16 terms, and the core, or a function for each arity.
    assert compiler.compiled == ledger.stats().compiles == {Plan.FOLD: 6, Plan.INLINE: 19}[plan]


class Failing(CountingEager):
    """A backend that fails at compile time, or when a compiled function runs."""

    def __init__(self, said: str = "", error: type[Exception] = RuntimeError) -> None:
        super().__init__()
        self.said, self.error = said, error

    def compile(self, graph, args):
        if self.said:
            raise self.error(self.said)

        def run(args):
            raise RuntimeError("not with these sizes")

        return run


@pytest.mark.parametrize("compiler", [Failing(), Failing("broken")], ids=["when it runs", "when it is compiled"])
@pytest.mark.parametrize(
    ("executor", "fails", "runs"),
    [
        ("nvfuser", False, "runs as Thunder made it"),
        ("nvfuser", True, "runs operation by operation: nvFuser rejects it"),
        ("fusioncache", False, "runs operation by operation"),
        ("torchcompile", False, "runs operation by operation"),
    ],
)
def test_only_nvfusers_function_takes_the_place_of_what_fails_before_the_operations_do(compiler, executor, fails, runs):
    def run_as_thunder_made_it(x, _unused, y):
        called.append(1)
        if fails:
            raise RuntimeError("nvFuser rejects it")
        return torch.tanh(y), x - y

    region, called = draw("tanh(y)", "sub(x, y)", x=(2, 3), unused=(2, 3), y=(2, 3)), []
    binding = canonicalize(region).binding
    inputs = tuple(binding.arguments.index(each) if each in binding.arguments else None for each in range(3))
    outputs = tuple(binding.outputs.index(slot) for slot in range(2))
    fallback = Fallback(run_as_thunder_made_it, inputs, outputs, executor)
    call, _, ledger, _ = call_of(region, compiler=compiler, fallback=fallback)
    args = [(A, None, B)[position] for position in binding.arguments]
    with pytest.warns(RuntimeWarning, match=f"named could not be compiled and .*{runs}"):
        call.target.function(*args)
    results = call.target.function(*args)  # without a warning
    assert torch.equal(results[binding.outputs[0]], torch.tanh(B)) and torch.equal(results[binding.outputs[1]], A - B)
    assert len(called) == (0 if executor != "nvfuser" else 1 if fails else 2)
    assert ledger.stats().bypasses == {
        "compile failed: RuntimeError": 1,
        **({"fallback failed: RuntimeError": 1} if fails else {}),
    }


def test_what_the_operations_raise_as_well_is_the_models_own_error():
    whole = TensorType("int64", (2, 3), "cpu")
    call, _, ledger, _ = call_of(draw("div(x, y)", x=whole, y=whole))
    with pytest.raises(RuntimeError, match="ZeroDivision"):
        call.target.function(torch.ones(2, 3, dtype=torch.int64), torch.zeros(2, 3, dtype=torch.int64))
    assert not ledger.stats().bypasses


WRITING = draw("copy_(tanh(x), x, grad_enabled=False)")


def test_what_draws_or_writes_is_not_begun_twice_and_no_memory_is_not_hidden():
    drawing, full = draw("uniform_philox(x)"), Failing("full", torch.OutOfMemoryError)
    for region, compiler in ((WRITING, Failing()), (drawing, Failing()), (tanh_graph(), full)):
        call, *_ = call_of(region, compiler=compiler)
        with pytest.raises(RuntimeError, match=compiler.said or "not with these sizes"):
            call.target.function(A)


def test_what_writes_and_cannot_be_compiled_runs_operation_by_operation_at_once():
    fallback = Fallback(pytest.fail, (0,), (0,), "nvfuser")
    call, *_ = call_of(WRITING, compiler=Failing("broken"), fallback=fallback)
    given = A.clone()
    with pytest.warns(RuntimeWarning, match="operation by operation"):
        call.target.function(given)
    assert torch.equal(given, torch.tanh(A))
    call.target.function(given)
    assert torch.equal(given, torch.tanh(torch.tanh(A)))


def test_a_region_is_compiled_without_unused_inputs_and_what_is_computed_from_them():
    s = Sketch()
    x, unused, z = (s.input() for _ in range(3))
    s.op("add", s.op("sin", unused), z)
    region = s.graph(s.op("sub", z, s.op("tanh", x)))
    compiled = instance_of(region, canonicalize(region).binding).region
    assert ([op.name for op in compiled.ops], len(compiled.inputs)) == (["prims.tanh", "prims.sub"], 2)


def test_the_smallest_piece_that_is_rejected_runs_by_operations_and_no_memory_is_no_rejection():
    def compile_picky(graph, args, error=RuntimeError):
        if any(op.name == "prims.tanh" for op in graph.ops):
            raise error("I do not like tanh")
        return Eager().compile(graph, args)

    text = "a"
    for number in range(24):
        text = f"tanh({text})" if number == 17 else f"add({text}, a)"
    region = draw(text, "a")
    run, pieces = run_in_pieces(region, [A], compile_picky)
    assert all(all(map(torch.equal, run([x]), Eager().compile(region, [x])([x]))) for x in (A, B))
    assert [piece.is_compiled for piece in pieces].count(False) == 1 < len(pieces)
    with pytest.raises(torch.OutOfMemoryError):
        run_in_pieces(region, [A], partial(compile_picky, error=torch.OutOfMemoryError))
