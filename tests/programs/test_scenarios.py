"""Usual uses of a model, with and without fusioncache: the same bits, and shared templates.

On the CPU regions run op by op, in both; on a GPU nvFuser compiles them, in both.
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import thunder
import torch
from models import are_same
from parallel_models import GatedLlama, Sizes
from thunder.plugins import ReduceOverhead
from thunder.transforms.cudagraph import CUDAGraphTransform
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import fusioncache
from benchmarks.common.counting import use_backend
from benchmarks.common.thunder_jit import executors
from fusioncache.transform import executor

SIZES = Sizes(heads=2, groups=2, head_size=16, gated=64, vocabulary=64, length=12)


class Checkpointed(torch.nn.Module):
    def __init__(self, block: torch.nn.Module):
        super().__init__()
        self.block = block

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.block, x, use_reentrant=False)


def make_model(device: str, dropout: float = 0.0, checkpointed: bool = False) -> torch.nn.Module:
    model = GatedLlama(replace(SIZES, dropout=dropout), layers=2, dtype=torch.float32)
    if checkpointed:
        model.blocks = torch.nn.ModuleList(map(Checkpointed, model.blocks))
    return model.to(device)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(executor, "best_backend", executor.best_backend)  # restored after the test
    deterministic = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    use_backend(name_backend(request.param))
    yield request.param
    torch.use_deterministic_algorithms(deterministic)


def name_backend(device: str) -> str:
    return "eager" if device == "cpu" else "nvfuser"


def make_tokens(device: str, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, SIZES.vocabulary, (2, SIZES.length), generator=generator).to(device)


Scenario = Callable[[torch.nn.Module, Any], list[torch.Tensor]]


def run(device: str, scenario: Scenario, **options: Any) -> tuple[list[torch.Tensor], Any]:
    """Returns a scenario's tensors and the compiled model; asserts that bits without fusioncache are equal."""
    regions, results = executors(name_backend(device)), []
    transform = fusioncache.FusionCache(cache=fusioncache.Cache(), backend=name_backend(device))
    for transforms in ([], [transform]):
        model = make_model(device, **options)
        compiled = thunder.jit(model, executors=regions, transforms=transforms)
        torch.manual_seed(7)
        results.append([tensor.detach().clone() for tensor in scenario(model, compiled)])
    plain, ours = results
    assert are_same(ours, plain)
    assert all(tensor.isfinite().all() for tensor in ours)
    stats = transform.stats()
    assert stats.hits > 0 and not stats.bypasses
    assert 0 < stats.compiles < stats.regions
    return ours, compiled


def loss_of(compiled: Any, tokens: torch.Tensor) -> torch.Tensor:
    logits = compiled(tokens).float()
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def gradients(model: torch.nn.Module) -> list[torch.Tensor]:
    return [parameter.grad for parameter in model.parameters()]


def test_training_with_dropout_that_draws_the_same_numbers(device):
    def train(model, compiled):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            losses.append(loss_of(compiled, make_tokens(device)))
            losses[-1].backward()
            optimizer.step()
        assert thunder.cache_misses(compiled) == 1  # nothing is traced again
        return [*losses, *gradients(model), *model.parameters()]

    (first, second, *_), _ = run(device, train, dropout=0.3)
    assert first != second


def test_torch_autocast(device):
    # After a call under autocast, Thunder derives other programs of the function under autocast too.
    def scenario(model, compiled):
        with torch.autocast(device, torch.bfloat16):
            logits = compiled(make_tokens(device))
        assert logits.dtype is torch.bfloat16
        logits.float().square().mean().backward()
        assert all(gradient.dtype is torch.float32 for gradient in gradients(model))
        return [logits, *gradients(model)]

    run(device, scenario)


def test_activation_checkpointing(device):
    def scenario(model, compiled):
        loss = loss_of(compiled, make_tokens(device))
        loss.backward()
        return [loss, *gradients(model)]

    plain = thunder.jit(make_model(device), executors=executors(name_backend(device)))
    plain(make_tokens(device))
    assert count_saved(run(device, scenario, checkpointed=True)[1]) < count_saved(plain)


def count_saved(compiled: Any) -> int:
    """Returns the number of values that the forward pass returns: the output, and saved tensors."""
    return len(thunder.last_traces(compiled)[-1].bound_symbols[-1].flat_proxy_args)


class AsPlugin(fusioncache.Plugin):
    """A plugin around an existing transform."""

    def __init__(self, transform: fusioncache.FusionCache):
        super().__init__(cache=transform.cache)
        self.transform = transform


def capture_by_transform(model, transforms):
    return thunder.jit(model, transforms=[*transforms, CUDAGraphTransform()])


def capture_by_plugin(model, transforms):
    return thunder.compile(model, plugins=[*map(AsPlugin, transforms), ReduceOverhead()])


@pytest.mark.gpu
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("compile_", [capture_by_transform, capture_by_plugin])
def test_thunders_cuda_graphs(compile_, grad):
    """CUDA graphs of Thunder's regions and of shared ones replay equally, each from its own input."""
    model = make_model("cuda").requires_grad_(grad)
    transform = fusioncache.FusionCache(cache=fusioncache.Cache())
    results = []
    for compiled in (compile_(model, [transform]), compile_(model, [])):
        for seed in range(4):
            model.zero_grad()
            with nullcontext() if grad else torch.no_grad():
                loss = loss_of(compiled, make_tokens("cuda", seed))
            if grad:
                loss.backward()
            results.append([tensor.clone() for tensor in [loss.detach(), *(gradients(model) if grad else [])]])
    assert all(are_same(one, other) for one, other in zip(results[:4], results[4:], strict=True))
    assert not are_same(results[0], results[1])
    assert transform.stats().hits > 0 and not transform.stats().bypasses
