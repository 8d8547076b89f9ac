"""Whole models through TorchInductor on the CPU: how often it compiles, and that every bit stays the same."""

import functools
import shutil

import pytest
import torch
from models import Blocks, Residual, are_same, compile_plain, compile_with, recompute, step

from fusioncache.template.plan import FOLD_WIDTHS
from fusioncache.transform import executor

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
