"""How arguments will lie is foreseen from a trace: what is handed over is what calls ask for."""

from collections.abc import Sequence
from typing import Any

import pytest
import thunder
import torch
from expert_layers import Experts
from recorded_asks import Recorder
from store_processes import PersistentEager

import fusioncache
from fusioncache.accelerators.precompile.ahead import LayoutPrediction
from fusioncache.template.strides import Strided


class Attention(torch.nn.Module):
    """Heads as views of one product, scores, a mask that is broadcast, and a residual add."""

    def __init__(self, size: int = 16, heads: int = 2):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = torch.nn.Linear(size, 3 * size), torch.nn.Linear(size, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, size = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, size // self.heads).transpose(1, 2)
            for part in self.qkv(torch.tanh(x)).split(size, -1)
        )
        scores = q @ k.transpose(-2, -1)
        mask = torch.ones(length, length, dtype=torch.bool).tril()
        weights = torch.softmax(scores.masked_fill(~mask, -1e9) * 0.5, -1)
        mixed = (weights @ v).transpose(1, 2).reshape(batch, length, size)
        return x + torch.nn.functional.gelu(self.out(mixed))


class Transposed(torch.nn.Module):
    """A region that computes elements of what it has transposed itself, and another one that takes the result."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.scale = torch.nn.Parameter(torch.randn(8, 4)), torch.nn.Parameter(torch.randn(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        turned = torch.sin(torch.tanh(x * self.scale).t()) * 2
        return torch.cos(turned).sum(-1, keepdim=True) + turned @ self.weight


@pytest.mark.parametrize(
    ("make", "shape", "foreseen", "unforeseen"),
    [
        (Attention, (2, 4, 16), 5, 3),
        (Attention, (1, 4, 16), 5, 3),
        (Experts, (6, 16), 4, 6),
        (Transposed, (8, 6), 3, 0),
    ],
    ids=str,
)
def test_what_is_handed_over_is_what_calls_ask_for(tmp_path, monkeypatch, make, shape, foreseen, unforeseen):
    monkeypatch.setattr("fusioncache.transform.shared_region.make_backend", lambda *args, **options: PersistentEager())
    torch.manual_seed(0)
    cache, recorder = fusioncache.Cache(record=False, store=tmp_path), Recorder()
    cache.helpers = recorder
    monkeypatch.setattr("fusioncache.accelerators.precompile.ahead.find_helpers", lambda *args, **options: recorder)
    transform = fusioncache.FusionCache(cache=cache, backend="eager")
    compiled = thunder.jit(make(), transforms=[transform], executors=fusioncache.executors())
    compiled(torch.randn(shape)).square().sum().backward()
    stats = transform.stats()
    assert stats.handed_over == len(recorder.handed) >= foreseen and not stats.bypasses
    assert recorder.handed.keys() <= recorder.wanted
    assert len(recorder.wanted - recorder.handed.keys()) <= unforeseen


class _Proxy:
    def __init__(self, name: str, *shape: int):
        self.name, self._shape, self.shape = name, shape, shape


class _Call:
    def __init__(self, name: str, args: Sequence[Any], *results: _Proxy):
        self.sym = type("Symbol", (), {"name": name, "id": name, "is_fusion": False})
        self.args, self.kwargs, self.flat_proxy_outs = args, {}, list(results)


def read(*calls: _Call, **before: Strided | None) -> dict[str, Strided | None]:
    prediction = LayoutPrediction(before)
    prediction.read_trace(type("Trace", (), {"bound_symbols": calls}), {})
    return prediction.layouts


def test_gradients_of_flash_attention_lie_as_the_heads_do():
    q, k, v, *grads = (_Proxy(name, 2, 8, 64, 64) for name in ("q", "k", "v", "dq", "dk", "dv"))
    call = _Call("sdpafx_scaled_dot_product_efficient_attention_backward", [_Proxy("g", 2, 8, 64, 64), q, k, v], *grads)
    view = Strided((2, 8, 64, 64), (98304, 64, 1536, 1))
    assert read(call, v=view) == {"v": view, "dv": Strided((2, 8, 64, 64), (32768, 64, 512, 1))}
