"""Regions that differ only in sizes: when they share a compilation, and that each computes what it should."""

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from models import are_same, compile_plain, compile_with

import fusioncache
from fusioncache.backends.eager import Eager
from fusioncache.ir.errors import Declined, Scope

pytestmark = pytest.mark.usefixtures("eager_regions")


@pytest.fixture
def cache() -> fusioncache.Cache:
    return fusioncache.Cache(store=False, record=False)


class Norm(torch.nn.Module):
    """A norm, a gate and a mean over the rows, whose number is a number of the arithmetic."""

    def __init__(self, width: int = 8):
        super().__init__()
        self.norm = torch.nn.RMSNorm(width)
        self.up = torch.nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu(self.up(self.norm(x))).mean(1) + x.sum(1)


def train(compiled: Callable, *shape: int) -> list[torch.Tensor]:
    """One step on numbers that depend on the shape alone; its result and the gradient of its input."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0), requires_grad=True)
    result = compiled(x)
    result.sum().backward()
    return [result, x.grad]


def test_a_size_of_1_or_0_is_never_general(cache):
    compiled, transform = compile_with(lambda x: torch.tanh(x) * 2, cache=cache)
    for length in (5, 1, 0, 6, 1, 7, 0):
        x = torch.randn(3, length)
        assert torch.equal(compiled(x), torch.tanh(x) * 2)
    assert (transform.stats().compiles, transform.stats().generalizations, transform.stats().general_hits) == (4, 1, 1)


@pytest.mark.parametrize("sizes", ["auto", "static", "dynamic"])
def test_widths_of_one_program_share_only_if_asked_to(cache, sizes):
    compiled, transform = compile_with(lambda a, b: ((a.tanh() * 2) @ b).tanh() * 2, cache=cache, sizes=sizes)
    compiled(torch.randn(4, 6), torch.randn(6, 3))
    stats = transform.stats()
    assert (stats.compiles, stats.generalizations) == (2, int(sizes == "dynamic"))


def test_other_strides_at_another_length(cache):
    compiled, transform = compile_with(lambda a, b: (a + b).tanh() * 2, cache=cache)
    for length in (4, 6, 9):
        a, b = torch.randn(5, length), torch.randn(length, 5).t()
        for left, right in ((a, b), (b, a), (a[:, ::2], b[:, ::2]), (a[:1].expand(5, length), a)):
            result = compiled(left, right)
            expected = (left + right).tanh() * 2
            assert torch.equal(result, expected) and result.stride() == expected.stride()
    assert not transform.stats().bypasses


def test_a_refusal_keeps_no_tensor_alive(cache, monkeypatch):
    """The error would keep the frames that it came through: a whole model, and what is computed with it."""

    def refuse(*_):
        raise Declined("no", Scope.GENERAL)

    monkeypatch.setattr(Eager, "compile_general", refuse)
    model = Norm()
    compiled, transform = compile_with(model, cache=cache)
    for length in (6, 9, 5):
        result, gradient = train(compiled, 2, length, 8)
    assert transform.stats().own_sizes["no"] > 1
    kept = [weakref.ref(each) for each in (result, gradient, model.up.weight, model.up.weight.grad)]
    del model, compiled, result, gradient
    gc.collect()
    assert not [each() for each in kept if each() is not None]


def test_code_that_is_not_for_a_size_is_not_used(cache, monkeypatch):
    """Conditions decide: here code is for sizes up to six, as if a compiler had found that out."""
    compile_general = Eager.compile_general

    def compile_some(self, general, args, values):
        fit = compile_general(self, general, args, values)

        def fit_some(args, values):
            if values[0] > 6:
                raise Declined("too large", Scope.GENERAL)
            return fit(args, values)

        return fit_some

    monkeypatch.setattr(Eager, "compile_general", compile_some)
    compiled, transform = compile_with(lambda x: x.tanh() * 2, cache=cache)
    for length in (4, 6, 10, 5):
        x = torch.randn(3, length)
        assert torch.equal(compiled(x), x.tanh() * 2)
    stats = transform.stats()
    assert (stats.compiles, stats.generalizations, stats.general_hits) == (3, 1, 1)
    assert stats.own_sizes == {"too large": 1} and not stats.bypasses


def test_what_fails_is_compiled_for_its_own_sizes(cache, monkeypatch):
    def fail(*args: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("fusioncache.backends.eager.Eager.compile_general", fail)
    compiled, transform = compile_with(lambda x: x.tanh() * 2, cache=cache)
    for length in (3, 4, 5):
        x = torch.randn(2, length)
        assert torch.equal(compiled(x), x.tanh() * 2)
    stats = transform.stats()
    assert stats.own_sizes == {"compile failed: ZeroDivisionError": 2}
    assert (stats.compiles, stats.generalizations) == (3, 0) and not stats.bypasses


def test_the_environment_says_what_the_option_does_not(cache, monkeypatch):
    monkeypatch.setenv("FUSIONCACHE_SIZES", "static")
    for sizes, general in ((None, 0), ("auto", 1)):
        compiled, transform = compile_with(lambda x: x.tanh() * 2, cache=cache, sizes=sizes)
        for length in (3, 4):
            compiled(torch.randn(2, length))
        assert transform.stats().generalizations == general
        cache.clear()
    monkeypatch.setenv("FUSIONCACHE_SIZES", "some")
    with pytest.raises(ValueError, match="FUSIONCACHE_SIZES must be auto, static or dynamic, got 'some'"):
        fusioncache.FusionCache(cache=cache)
    with pytest.raises(ValueError, match="sizes must be 'auto', 'static' or 'dynamic', got 'some'"):
        fusioncache.FusionCache(cache=cache, sizes="some")


def test_a_loaded_program_is_one_more_of_its_function(tmp_path):
    model = Norm()
    plain = compile_plain(model)
    for lengths in ((3,), (3, 4, 5)):
        compiled, transform = compile_with(model, cache=fusioncache.Cache(store=tmp_path, record=False))
        for length in lengths:
            assert are_same(train(compiled, 2, length, 8), train(plain, 2, length, 8))
    stats = transform.stats()
    assert stats.programs_loaded == 1 and stats.general_hits == stats.generalizations > 0
