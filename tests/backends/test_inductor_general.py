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
        self.general, self.transform = self._compile(function, "auto")
        self.static, _ = self._compile(function, "static")

    @staticmethod
    def _compile(function: Callable[..., torch.Tensor], sizes: str) -> tuple[Callable, fusioncache.FusionCache]:
        cache = fusioncache.Cache(store=False, record=False)
        return compile_with(function, backend="inductor", cache=cache, sizes=sizes)

    def call(self, *args: torch.Tensor) -> None:
        """Calls it where its code is for these sizes alone."""
        self.general(*args)

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
    both.call(torch.randn(3, 64), torch.randn(64))
    for length in (2, 17, 1023):
        both.check(torch.randn(3, length), torch.randn(length))
    assert both.counts == (2, 1, 2)


def test_layouts_keep_bits_and_strides():
    both = Both(lambda a, b: (a + b).tanh() * 2)
    for length in (4, 6, 10):
        a, b = torch.randn(4, length), torch.randn(length, 4).t()
        for left, right in ((b, b + 1), (a[:1].expand(4, length), a)):
            both.check(left, right)
    stats = both.transform.stats()
    assert stats.generalizations > 0 and stats.general_hits + sum(stats.own_sizes.values()) >= 2 and not stats.bypasses


def test_memory_may_be_shared_and_of_any_kind():
    both = Both(lambda a, b: (a - b * 0.5).tanh())
    for length in (4, 6, 10):
        a = torch.randn(2 * length)
        both.check(a[:length], a[1 : length + 1])
        both.check(a[:length], a[:length])
    with torch.no_grad():
        for other in (torch.nn.Parameter(a), a.clone().requires_grad_(), torch._neg_view(a)):
            both.check(a, other)
    assert both.counts[0] == 2


def test_numbers_that_vary_keep_every_bit():
    """One is read from a tensor in each call; one is made of the length, beside dimensions and without."""

    def compute(x: torch.Tensor, number: float, bias: torch.Tensor) -> tuple[torch.Tensor, ...]:
        scaled = (x.tanh() * number + x) / number
        return scaled.mean(0) / x.shape[1], (bias * 2).sum() / (3 * x.shape[1]) - x[0]

    def function(
        scale: torch.Tensor, bias: torch.Tensor, x: torch.Tensor, narrow: torch.Tensor, wide: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        number = scale.item()
        return (*compute(x, number, bias), *compute(narrow, number, bias), *compute(wide, number, bias))

    both = Both(function)
    for length in (4, 6, 10):
        for number in (0.3, -7.0):
            scale = torch.tensor(number, dtype=torch.float64)
            kinds = (torch.randn(3, length).to(dtype) for dtype in (torch.float32, torch.bfloat16, torch.float64))
            (both.call if length == 4 else both.check)(scale, torch.randn(5), *kinds)
    assert both.counts == (2, 1, 1)


def test_a_number_that_varies_is_nowhere_but_in_sums_and_products():
    both = Both(lambda x, exponent: torch.maximum(x.abs() ** exponent.item(), x * 2))
    for length in (4, 6, 10):
        both.call(torch.randn(3, length), torch.tensor(2.5, dtype=torch.float64))
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
    compiled = []
    original = executor.inductor_function

    def counting(function):
        compiled.append(function)
        return original(function)

    monkeypatch.setattr(executor, "inductor_function", counting)
    monkeypatch.setattr(executor, "best_backend", lambda device: "inductor")
    return compiled


def recomputed(layers: int) -> tuple[Residual, torch.Tensor]:
    torch.manual_seed(layers)
    return Residual(layers).requires_grad_(False), torch.randn(10, 10)


# One test for both plans, because the uncached regions take the longest to compile.
def test_bits_of_a_recomputed_stream_do_not_change(uncached_compiles):
    model, x = recomputed(3)
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
