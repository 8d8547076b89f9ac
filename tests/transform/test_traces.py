"""Traces without operations that have no effect: which ones are removed, and that results are equal."""

import random
from collections import Counter

import pytest
import thunder
import torch
from compared_models import are_equal
from models import compile_with
from thunder.core import dtypes
from thunder.core.devices import Device
from thunder.core.prims import PrimIDs
from thunder.core.proxies import TensorProxy
from thunder.core.trace import TraceCtx, tracectx
from thunder.executors import torchex

from fusioncache.accelerators.attention.executor import cudnn_attention
from fusioncache.accelerators.steps.lean_steps import simplify
from fusioncache.accelerators.steps.views import FOR_ATTENTION, NOTHING, TWICE, simplify_views
from fusioncache.transform.rewrite import derive

SHAPES = (2, 3, 8), (8, 6), (3, 8)


def trace_of(compute):
    with tracectx(TraceCtx()):
        args = [
            TensorProxy(name, shape=shape, device=Device("cpu"), dtype=dtypes.float32, requires_grad=False)
            for name, shape in zip("xwv", SHAPES, strict=True)
        ]

    def computation(x, w, v):
        return compute(x, w, v)

    trace = thunder.common.trace(inline_trace=False, rename_proxies=False)(computation, *args)
    return derive(trace, trace.bound_symbols, "Made by a test")


def lean_of(trace):
    leaner = simplify(trace)
    return derive(trace, leaner.symbols, "Without"), leaner.taken


def symbols_of(trace):
    return [symbol for symbol in trace.bound_symbols if symbol.sym.id is not PrimIDs.DEL]


ITSELF = {
    "a copy of what is turned twice": lambda x: x.t().t().contiguous(),
    "a conversion of it": lambda x: x.t().t().to(torch.float32),
    "a reshape of it": lambda x: x.t().t().reshape(x.shape),
    "a copy of what is expanded to its shape": lambda x: x.expand(x.shape).contiguous(),
    "two copies": lambda x: (x.t().t().contiguous(), x.expand(x.shape).contiguous())[1],
}


@pytest.mark.parametrize("case", ITSELF)
def test_what_has_nothing_to_do_does_not_return_the_argument_for_a_view_of_it(case):
    for requires_grad in (False, True):
        compiled, _ = compile_with(ITSELF[case], programs=False)
        x = torch.randn(3, 4, requires_grad=requires_grad)
        result = compiled(x)
        assert result is not x and torch.equal(result, x)
        assert result.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        assert not (requires_grad and result.is_leaf)


@pytest.mark.parametrize("written", [False, True])
def test_attention_does_without_a_copy_unless_what_it_is_of_is_written_before(written):
    attend = cudnn_attention().attend

    def compute(x, w, v):
        heads = torchex.reshape(x, (1, 2, 3, 8))
        query = torchex.contiguous(heads)
        if written:
            torchex.copy_(torchex.mul(x, 2.0), x, grad_enabled=False)
        return (attend(query, heads, heads, None),)

    views = simplify_views(symbols_of(trace_of(compute)), writes=True)
    assert views.taken.get(FOR_ATTENTION, 0) == (not written)


def test_where_something_is_written_views_stay():
    def compute(x, w, v):
        one = torchex.reshape(x, (48,))
        copied = torchex.copy_(torchex.mul(one, 2.0), one, grad_enabled=False)
        return torchex.add(torchex.reshape(x, (48,)), copied), torchex.matmul(w, torchex.permute(w, (1, 0)))

    lean, taken = lean_of(trace := trace_of(compute))
    assert not taken
    assert len(symbols_of(lean)) == len(symbols_of(trace))
    check_same(trace, lean)


def test_numbers_of_other_types_are_others():
    def compute(x, w, v):
        made = [torchex.arange(start=start, step=1, end=8, device="cpu", dtype=dtypes.float32) for start in (0, 0.0, 0)]
        return (torchex.add(torchex.add(made[0], made[1]), made[2]),)

    assert simplify(trace_of(compute)).taken == {TWICE: 1}


def evaluate(trace):
    """Returns the results and their strides, which of them share memory with which values, and which are identical."""
    torch.manual_seed(0)
    args = [torch.randn(shape) for shape in SHAPES]
    found = trace.python_callable()(*args)
    memory = [each.untyped_storage().data_ptr() for each in (*args, *found)]
    same = [[each is other for other in (*args, *found)] for each in found]
    return found, [each.stride() for each in found], [[each == place for place in memory] for each in memory], same


def check_same(one, other):
    (found, *memory), (expected, *wanted) = evaluate(one), evaluate(other)
    assert memory == wanted
    assert are_equal(found, expected)


def random_compute(seed):
    """Returns a random function of views and products of earlier values, which returns some of its values."""

    def compute(x, w, v):
        rng, values, done = random.Random(seed), [x, w, v], []
        for _ in range(rng.randrange(4, 20)):
            again = bool(done) and rng.random() < 0.2
            function, *args = rng.choice(done) if again else random_operation(rng, values)
            done.append((function, *args))
            values.append(function(*args))
        return tuple(rng.sample(values[3:], k=min(3, len(values) - 3)))

    return compute


def random_operation(rng, values):
    values = [each for each in values if each.ndim]
    value = rng.choice(values[-2:] if rng.random() < 0.6 else values)
    size, dims = value.numel, value.ndim
    factor = next((each for each in (2, 3, 4) if size % each == 0), 1)
    shape = rng.choice(((-1,), (factor, size // factor), (size // factor, -1)))
    choices = [
        *[(torchex.reshape, value, shape)] * 2,
        (torchex.torch_prims_reshape_impl, value, tuple(value.shape)),
        (torchex.permute, value, tuple(rng.sample(range(dims), dims))),
        (torchex.transpose, value, rng.randrange(dims), rng.randrange(-dims, dims)),
        (torchex.unsqueeze, value, rng.randrange(dims)),
        (torchex.expand, value, list(value.shape)),
        (torchex.contiguous, value),
        (torchex.mul, value, 0.5),
        (torchex.sum, value, dims - 1),
    ]
    for function, place, most, more in ((torchex.matmul, 0, 1, ()), (torchex.linear, -1, 2, (None,))):
        others = [each for each in values if most <= each.ndim <= 2 and each.shape[place] == value.shape[-1]]
        if others and dims > 1:
            choices.append((function, value, rng.choice(others), *more))
    return rng.choice(choices)


def test_random_programs_compute_the_same():
    found = Counter()
    for seed in range(120):
        trace = trace_of(random_compute(seed))
        lean, taken = lean_of(trace)
        found.update(taken)
        assert len(lean.bound_symbols) <= len(trace.bound_symbols)
        check_same(trace, lean)
        assert lean_of(lean)[1].get(TWICE, 0) == 0
    assert min(found[what] for what in (TWICE, NOTHING)) > 5, found
