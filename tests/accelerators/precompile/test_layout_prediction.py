"""Layouts of arguments are predicted from a trace: the requests that are handed over are those that calls make."""

import pytest
import thunder
import torch
from expert_layers import Experts
from parallel_models import GatedBlock, Sizes
from recorded_asks import Recorder
from store_processes import PersistentEager

import fusioncache


class Attending(GatedBlock):
    def __init__(self) -> None:
        super().__init__(Sizes())


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
        (Attending, (2, 4, 16), 18, 0),
        (Attending, (1, 4, 16), 18, 0),
        (Experts, (6, 16), 4, 6),
        (Transposed, (8, 6), 4, 0),
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
