"""Layouts of arguments are predicted from a trace: the requests that are handed over are those that calls make."""

from collections.abc import Callable, Sequence

import pytest
import torch
from expert_layers import Experts
from models import compile_with
from parallel_models import GatedBlock, Sizes
from recorded_requests import Recorder
from store_processes import PersistentEager

import fusioncache
from fusioncache.cache.peers import StoreRequest


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


def compile_recording(model, backend, recorder, store, monkeypatch):
    """Returns the compiled model, whose requests are recorded, and its transform."""
    monkeypatch.setattr("fusioncache.transform.shared_region.make_backend", lambda *args, **options: backend)
    monkeypatch.setattr("fusioncache.accelerators.precompile.ahead.find_helpers", lambda *args, **options: recorder)
    cache = fusioncache.Cache(record=False, store=store)
    cache.helpers = recorder
    return compile_with(model, cache=cache)


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
    recorder = Recorder()
    compiled, transform = compile_recording(make(), PersistentEager(), recorder, tmp_path, monkeypatch)
    compiled(torch.randn(shape)).square().sum().backward()
    stats = transform.stats()
    assert stats.handed_over == len(recorder.handed) == count and not stats.bypasses
    assert recorder.handed.keys() == recorder.wanted


class Expecting(Recorder):
    """Takes the requests of a program that was filled in when a call misses the first of them."""

    expected: Callable[[], Sequence[StoreRequest]] | None = None

    def expect(self, requests: Callable[[], Sequence[StoreRequest]], handed_over: Callable[[int], object]) -> None:
        self.expected = requests

    def note_missing(self) -> bool:
        requests, self.expected = self.expected, None
        return requests is not None and self.hand_over(requests()) > 0


class Contiguous(PersistentEager):
    """Derives code, and says falsely that results are contiguous, unless they are views."""

    derives_sizes, lays_out_as_torch = True, False

    def persist_size(self, made, region, args):
        return self.persist(region, args)


def test_calls_at_other_lengths_correct_wrong_predictions(tmp_path, monkeypatch):
    recorder, unforeseen = Expecting(), []
    compiled, transform = compile_recording(Convolved(), Contiguous(), recorder, tmp_path, monkeypatch)
    for length in (11, 13, 17, 19):
        compiled(torch.linspace(-1, 1, 8 * length).reshape(2, length, 4))
        unforeseen.append(len(recorder.wanted - recorder.handed.keys()))
    assert transform.stats().programs_filled == 2
    assert unforeseen == [1, 2, 2, 2]
