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


class Convolved(torch.nn.Module):
    """A convolution of a transposed tensor, whose result a region transposes back, and a triangle."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv1d(4, 4, 3, padding=1, groups=4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        turned = self.convolution(torch.tanh(x).transpose(1, 2)).transpose(1, 2) * 2
        return torch.sin(turned @ torch.triu(torch.cos(turned[0, :4]), 1)) * x


@pytest.mark.parametrize(
    ("make", "shape", "count"),
    [
        (Attending, (2, 4, 16), 18),
        (Attending, (1, 4, 16), 18),
        (Experts, (6, 16), 10),
        (Transposed, (8, 6), 4),
        (Convolved, (2, 6, 4), 6),
    ],
    ids=str,
)
def test_what_is_handed_over_is_what_calls_ask_for(tmp_path, monkeypatch, make, shape, count):
    monkeypatch.setattr("fusioncache.transform.shared_region.make_backend", lambda *args, **options: PersistentEager())
    torch.manual_seed(0)
    cache, recorder = fusioncache.Cache(record=False, store=tmp_path), Recorder()
    cache.helpers = recorder
    monkeypatch.setattr("fusioncache.accelerators.precompile.ahead.find_helpers", lambda *args, **options: recorder)
    transform = fusioncache.FusionCache(cache=cache, backend="eager")
    compiled = thunder.jit(make(), transforms=[transform], executors=fusioncache.executors())
    compiled(torch.randn(shape)).square().sum().backward()
    stats = transform.stats()
    assert stats.handed_over == len(recorder.handed) == count and not stats.bypasses
    assert recorder.handed.keys() == recorder.wanted
