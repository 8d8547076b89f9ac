"""Whole models through TorchInductor on the CPU: how often it compiles, and that every bit stays the same."""

from __future__ import annotations

import shutil

import pytest
import thunder
import torch
from models import Blocks, Residual, recompute, same, step

import fusioncache
from fusioncache.trace import executor

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="TorchInductor needs a C++ compiler")


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


def cached(model, **options):
    transform = fusioncache.FusionCache(cache=fusioncache.Cache(), backend="inductor", **options)
    return thunder.jit(model, executors=fusioncache.executors(), transforms=[transform]), transform


# tanh, and folds of 1, 2, 4 and 8 terms, then of 16, then of 32; of the stream's template the core is tanh again.
@pytest.mark.parametrize(("plan", "expected"), [("fold", (5, 6, 7, 7)), ("auto", (5, 3, 3, 3))])
def test_compiles_of_a_recomputed_stream_do_not_grow_and_bits_do_not_change(plan, expected, uncached_compiles):
    counts = []
    for layers in (4, 8, 16, 20):
        torch.manual_seed(layers)
        model, x = Residual(layers).requires_grad_(False), torch.randn(10, 10)
        with recompute():
            compiled, transform = cached(model, residual=plan)
            result = compiled(x)
            before = len(uncached_compiles)
            plain = thunder.jit(model, executors=fusioncache.executors())(x)
        assert torch.equal(result, plain)
        counts.append((transform.stats().compiles, len(uncached_compiles) - before))
    ours, theirs = zip(*counts, strict=True)
    assert ours == expected
    assert theirs == (9, 17, 33, 41)


def test_training_is_bitwise_that_of_uncached_regions(uncached_compiles):
    torch.manual_seed(0)
    model, x = Blocks(3), torch.randn(5, 16)
    compiled, transform = cached(model)
    result = step(compiled, model, x)
    assert same(result, step(thunder.jit(model, executors=fusioncache.executors()), model, x))
    assert transform.stats().compiles < len(uncached_compiles)
    assert not transform.stats().bypasses


def test_a_second_model_compiles_nothing():
    cache = fusioncache.Cache()
    x = torch.randn(5, 16)
    for _ in range(2):
        transform = fusioncache.FusionCache(cache=cache, backend="inductor")
        model = Blocks(1)
        step(thunder.jit(model, executors=fusioncache.executors(), transforms=[transform]), model, x)
    assert transform.stats().compiles == 0
    assert transform.stats().hits == transform.stats().regions
