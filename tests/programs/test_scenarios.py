"""What people do with a model, with and without fusioncache: the same bits, and shared templates.

On the CPU regions run op by op, in both; on a GPU nvFuser compiles them, in both.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
import thunder
import torch
from models import are_same
from thunder.plugins import ReduceOverhead
from thunder.transforms.cudagraph import CUDAGraphTransform
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import fusioncache
from benchmarks.common.counting import use_backend
from benchmarks.common.thunder_jit import executors
from fusioncache.transform import executor

WIDTH, HEADS, WORDS, LENGTH = 32, 2, 64, 12


class Block(torch.nn.Module):
    """Attention and a gated MLP, each behind a norm of its own kind."""

    def __init__(self, dropout: float):
        super().__init__()
        self.norms = torch.nn.ModuleList([torch.nn.LayerNorm(WIDTH), torch.nn.RMSNorm(WIDTH)])
        self.qkv, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(2 * WIDTH, WIDTH)
        self.dropout = torch.nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.qkv(self.norms[0](x)).view(*x.shape[:-1], 3 * HEADS, WIDTH // HEADS).transpose(1, 2)
        query, key, value = heads.split(HEADS, 1)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.dropout(self.out(attended.transpose(1, 2).reshape(x.shape)))
        gate, up = self.up(self.norms[1](x)).chunk(2, -1)
        return x + self.dropout(self.down(functional.silu(gate) * up))


class Language(torch.nn.Module):
    """Some blocks, and an embedding that is the head's weight as well."""

    def __init__(self, blocks: int = 2, dropout: float = 0.0, checkpointed: bool = False):
        super().__init__()
        self.embedding = torch.nn.Embedding(WORDS, WIDTH)
        self.blocks = torch.nn.ModuleList(Block(dropout) for _ in range(blocks))
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.head = torch.nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.embedding.weight
        self.checkpointed = checkpointed

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return self.head(self.norm(x))


@dataclass(frozen=True)
class Pair:
    """Two models of equal parameters, compiled with and without fusioncache, and what fusioncache counted."""

    device: str
    models: tuple[torch.nn.Module, torch.nn.Module]
    compiled: tuple[Callable[..., Any], Callable[..., Any]]
    transform: fusioncache.FusionCache

    def run(self, scenario: Callable[[torch.nn.Module, Any], list[torch.Tensor]]) -> list[torch.Tensor]:
        """What a scenario computes, which is the same bit for bit with and without, and shares some templates."""
        results = []
        for model, compiled in zip(self.models, self.compiled, strict=True):
            torch.manual_seed(7)
            results.append([tensor.detach().clone() for tensor in scenario(model, compiled)])
        ours, plain = results
        assert are_same(ours, plain)
        assert all(tensor.isfinite().all() for tensor in ours)
        stats = self.transform.stats()
        assert stats.hits > 0 and not stats.bypasses
        assert 0 < stats.compiles < stats.regions
        return ours

    def tokens(self) -> torch.Tensor:
        generator = torch.Generator().manual_seed(0)
        return torch.randint(0, WORDS, (2, LENGTH), generator=generator).to(self.device)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(executor, "best_backend", executor.best_backend)  # to be put back
    deterministic = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    use_backend(backend(request.param))
    yield request.param
    torch.use_deterministic_algorithms(deterministic)


def backend(device: str) -> str:
    return "eager" if device == "cpu" else "nvfuser"


def make(device: str, dtype: torch.dtype = torch.float32, **options: Any) -> Pair:
    """A pair as it was made, but for its traces: these cost the most, and tests of the same model share them."""
    pair, first = made(device, dtype, **options)
    for model in pair.models:
        model.load_state_dict(first)
        model.zero_grad()
    return pair


@functools.cache
def made(device: str, dtype: torch.dtype, **options: Any) -> tuple[Pair, dict[str, torch.Tensor]]:
    """A pair, and the parameters that its models start from."""
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(Language(**options).to(device, dtype))
    transform = fusioncache.FusionCache(cache=fusioncache.Cache(), backend=backend(device))
    regions = executors(backend(device))
    ours = thunder.jit(models[0], executors=regions, transforms=[transform])
    pair = Pair(device, (models[0], models[1]), (ours, thunder.jit(models[1], executors=regions)), transform)
    return pair, {name: tensor.clone() for name, tensor in models[0].state_dict().items()}


def loss_of(compiled: Any, tokens: torch.Tensor) -> torch.Tensor:
    logits = compiled(tokens).float()
    return functional.cross_entropy(logits[:, :-1].reshape(-1, WORDS), tokens[:, 1:].reshape(-1))


def gradients(model: torch.nn.Module) -> list[torch.Tensor]:
    return [parameter.grad for parameter in model.parameters()]


def test_training_with_dropout_that_draws_the_same_numbers(device):
    pair = make(device, dropout=0.3)

    def train(model, compiled):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            losses.append(loss_of(compiled, pair.tokens()))
            losses[-1].backward()
            optimizer.step()
        return [*losses, *gradients(model), *model.parameters()]

    first, second, *_ = pair.run(train)
    assert first != second
    regions = pair.transform.stats().regions
    pair.run(train)
    assert pair.transform.stats().regions == regions  # nothing is traced again


def test_torch_autocast(device):
    # What Thunder derives of a function after a call under autocast it derives under autocast too.
    pair = make(device)

    def scenario(model, compiled):
        with torch.autocast(device, torch.bfloat16):
            logits = compiled(pair.tokens())
        assert logits.dtype is torch.bfloat16
        logits.float().square().mean().backward()
        return [logits, *gradients(model)]

    pair.run(scenario)
    assert all(gradient.dtype is torch.float32 for gradient in gradients(pair.models[0]))


def test_activation_checkpointing(device):
    def scenario(model, compiled):
        loss = loss_of(compiled, pair.tokens())
        loss.backward()
        return [loss, *gradients(model)]

    plain, pair = make(device, dropout=0.3), make(device, checkpointed=True)
    loss_of(plain.compiled[0], plain.tokens())
    pair.run(scenario)
    assert saved(pair) < saved(plain)


def saved(pair: Pair) -> int:
    """How many values the forward pass returns: the output, and what it saves for the backward pass."""
    return len(thunder.last_traces(pair.compiled[0])[-1].bound_symbols[-1].flat_proxy_args)


class AsPlugin(fusioncache.Plugin):
    """A plugin around a transform that is there already."""

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
    """Graphs of Thunder's regions and of shared ones are replayed: alike, and each from its own input."""
    torch.manual_seed(0)
    model = Language().cuda().requires_grad_(grad)
    transform = fusioncache.FusionCache(cache=fusioncache.Cache())
    results = []
    for compiled in (compile_(model, [transform]), compile_(model, [])):
        for seed in range(4):
            tokens = torch.randint(0, WORDS, (2, LENGTH), generator=torch.Generator().manual_seed(seed)).cuda()
            model.zero_grad()
            with nullcontext() if grad else torch.no_grad():
                loss = loss_of(compiled, tokens)
            if grad:
                loss.backward()
            results.append([tensor.clone() for tensor in [loss.detach(), *(gradients(model) if grad else [])]])
    assert all(are_same(one, other) for one, other in zip(results[:4], results[4:], strict=True))
    assert not are_same(results[0], results[1])
    assert transform.stats().hits > 0 and not transform.stats().bypasses
