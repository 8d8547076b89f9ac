"""Functions and models through TorchInductor on the CPU: how often it compiles, and that every bit is the same."""

import functools
import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
from models import Blocks, Residual, are_same, compile_plain, compile_with, recompute, step

import fusioncache
from fusioncache.ir import Declined, Scope
from fusioncache.template.plan import FOLD_WIDTHS
from fusioncache.transform import executor

pytestmark = [
    pytest.mark.usefixtures("eager_regions"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="TorchInductor needs a C++ compiler"),
]


class Both:
    """A function compiled for any sizes, and for its own."""

    def __init__(self, function: Callable[..., torch.Tensor]):
        (self.general, self.transform), (self.static, _) = (
            compile_with(function, backend="inductor", cache=fusioncache.Cache(store=False, record=False), sizes=sizes)
            for sizes in ("auto", "static")
        )

    def check(self, *args: torch.Tensor) -> None:
        results, expected = (one(*args) for one in (self.general, self.static))
        results, expected = ([one] if isinstance(one, torch.Tensor) else list(one) for one in (results, expected))
        assert are_same(results, expected)
        assert [result.stride() for result in results] == [other.stride() for other in expected]

    @property
    def counts(self) -> tuple[int, int, int]:
        stats = self.transform.stats()
        assert not stats.bypasses
        return stats.compiles, stats.generalizations, stats.general_hits


def softmax(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x * 0.3 + bias, -1)


def test_lengths_around_the_width_of_a_vector():
    both = Both(softmax)
    both.general(torch.randn(3, 64), torch.randn(64))  # its code is for these sizes alone
    for length in (2, 17, 1023):
        both.check(torch.randn(3, length), torch.randn(length))
    assert both.counts == (2, 1, 2)


@pytest.mark.parametrize("layouts", ["columns", "expanded"])
def test_layouts_keep_bits_and_strides(layouts):
    both = Both(lambda a, b: (a + b).tanh() * 2)
    for length in (4, 6, 10):
        a, b = torch.randn(4, length), torch.randn(length, 4).t()
        left, right = (b, b + 1) if layouts == "columns" else (a[:1].expand(4, length), a)
        (both.check if length == 10 else both.general)(left, right)
    assert both.counts == (2, 1, 1)


def test_memory_may_be_shared_and_of_any_kind():
    both = Both(lambda a, b: (a - b * 0.5).tanh())
    for length in (4, 6):
        both.general(torch.randn(length), torch.randn(length))
    memory = torch.randn(20)
    a = memory[:10]
    both.check(a, memory[1:11])
    both.check(a, a)
    with torch.no_grad():
        for other in (torch.nn.Parameter(a), a.clone().requires_grad_(), torch._neg_view(a)):
            both.check(a, other)
    assert both.counts[0] == 2


def test_numbers_that_vary_keep_every_bit():
    """One is read from a tensor in each call; one is made of the length, beside dimensions and without."""

    def compute(x: torch.Tensor, number: float, bias: torch.Tensor) -> tuple[torch.Tensor, ...]:
        scaled = (x.tanh() * number + x) / number
        return scaled.mean(0) / x.shape[1], (bias * 2).sum() / (3 * x.shape[1]) - x[0]

    def function(scale: torch.Tensor, bias: torch.Tensor, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        number = scale.item()
        return tuple(result for x in inputs for result in compute(x, number, bias))

    both = Both(function)
    for length in (4, 6, 10):
        for number in (0.3, -7.0):
            scale = torch.tensor(number, dtype=torch.float64)
            kinds = (torch.randn(3, length).to(dtype) for dtype in (torch.float32, torch.bfloat16, torch.float64))
            (both.check if length == 10 else both.general)(scale, torch.randn(5), *kinds)
    assert both.counts == (2, 1, 1)


def test_a_number_that_varies_is_nowhere_but_in_sums_and_products():
    both = Both(lambda x, exponent: torch.maximum(x.abs() ** exponent.item(), x * 2))
    for length in (4, 6, 10):
        both.general(torch.randn(3, length), torch.tensor(2.5, dtype=torch.float64))
    assert both.counts == (3, 0, 0)
    assert both.transform.stats().own_sizes == {"a variable number in prims.pow": 2}


def test_code_that_cannot_be_stored_is_compiled_for_each_size(monkeypatch):
    def refuse(*given: Any) -> None:
        raise Declined("a wrapper that calls other things", Scope.STORING)

    monkeypatch.setattr("fusioncache.backends.inductor.artifacts.check_wrapper", refuse)
    both = Both(softmax)
    for length in (64, 17):
        both.check(torch.randn(3, length), torch.randn(length))
    stats = both.transform.stats()
    assert not stats.generalizations and not stats.bypasses
    assert list(stats.own_sizes) == ["a wrapper that calls other things"]


@pytest.fixture
def uncached_compiles(monkeypatch):
    """Counts the regions that the executor compiles by itself."""
    compiled, own = [], executor.inductor_function
    monkeypatch.setattr(executor, "inductor_function", lambda function: compiled.append(function) or own(function))
    monkeypatch.setattr(executor, "best_backend", lambda device: "inductor")
    return compiled


# One test for both plans, because the uncached regions take the longest to compile.
def test_bits_of_a_recomputed_stream_do_not_change(uncached_compiles):
    torch.manual_seed(3)
    model, x = Residual(3).requires_grad_(False), torch.randn(10, 10)
    with recompute():
        results = [compile_with(model, "inductor", residual=plan)[0](x) for plan in ("fold", "carry")]
        assert not uncached_compiles
        plain = compile_plain(model)(x)
    assert all(torch.equal(result, plain) for result in results)
    assert len(uncached_compiles) == 7


def test_folds_of_every_width_have_the_bits_of_one_region(uncached_compiles):
    def chain(*terms: torch.Tensor) -> torch.Tensor:
        return torch.tanh(functools.reduce(torch.add, terms))

    terms = torch.randn(1 + sum(FOLD_WIDTHS), 10, 10)
    compiled, transform = compile_with(chain, "inductor", residual="fold")
    result = compiled(*terms)
    assert transform.stats().compiles == len(FOLD_WIDTHS) + 1 and not uncached_compiles
    assert torch.equal(result, compile_plain(chain)(*terms))
    assert len(uncached_compiles) == 1


def test_training_is_bitwise_that_of_uncached_regions(uncached_compiles):
    torch.manual_seed(0)
    model, x = Blocks(2), torch.randn(5, 16)
    compiled, transform = compile_with(model, "inductor")
    result = step(compiled, model, x)
    assert are_same(result, step(compile_plain(model), model, x))
    assert transform.stats().compiles < len(uncached_compiles)
    assert not transform.stats().bypasses
