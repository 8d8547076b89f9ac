"""Programs that Thunder compiles, captured without a GPU: replays run them again in fixed memory."""

import copy

import pytest
import thunder
import torch
from fake_graphs import FakeRecorder
from models import Blocks, are_same

import fusioncache
from fusioncache.accelerators.graphs.graph_capture import CudaGraphs
from fusioncache.process.settings import GRAPHS

WIDTH = 16


def compile_model(model, monkeypatch=None, store=False, transforms=(), **options):
    """The compiled model and its transform; captured without a GPU, if there is something to patch with."""
    cache = fusioncache.Cache(record=False, store=store)
    transform = fusioncache.FusionCache(cache=cache, backend="eager", **options)
    if monkeypatch is not None:
        recorder = FakeRecorder()
        monkeypatch.setattr(transform.graphs, "find_recorder", lambda device: recorder)
    compiled = thunder.jit(model, executors=fusioncache.executors(), transforms=[transform, *transforms])
    return compiled, transform


def step(compiled, model, seed, rows=3):
    model.zero_grad()
    output = compiled(torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(seed)))
    output.square().sum().backward()
    return [output.detach().clone(), *[parameter.grad.clone() for parameter in model.parameters()]]


def make_models(count):
    torch.manual_seed(0)
    model = Blocks(1)
    return [copy.deepcopy(model) for _ in range(count)]


@pytest.mark.parametrize("programs", [True, False])
def test_a_model_trains_with_the_same_bits(monkeypatch, tmp_path, programs):
    model, other = make_models(2)
    captured, transform = compile_model(model, monkeypatch, tmp_path, graphs=True, programs=programs)
    plain, _ = compile_model(other)
    optimizers = [torch.optim.AdamW(each.parameters(), 1e-2) for each in (model, other)]
    for seed in range(6):
        assert are_same(step(captured, model, seed), step(plain, other, seed)), seed
        for optimizer in optimizers:
            optimizer.step()
    stats = transform.stats()
    assert (stats.captures, stats.graph_replays, dict(stats.not_captured)) == (2, 8, {})
    # Neither the graphs nor autograd copied a gradient.
    assert stats.gradients_copied == 0
    inside = transform.graphs.find_recorder(None).addresses()
    assert all(each.grad.untyped_storage().data_ptr() in inside for each in model.parameters())


@pytest.mark.parametrize(("value", "captures"), [("1", True), ("0", False), ("", False)])
def test_the_environment_may_ask_for_it(monkeypatch, value, captures):
    monkeypatch.setenv(GRAPHS.name, value)
    cache = fusioncache.Cache(record=False, store=False)
    assert isinstance(fusioncache.FusionCache(cache=cache, backend="eager").graphs, CudaGraphs) is captures
    plugin = fusioncache.Plugin(cache=cache, backend="eager", graphs=not captures)
    assert isinstance(plugin.transform.graphs, CudaGraphs) is not captures


def test_verify_mode_looks_at_each_call():
    (model,) = make_models(1)
    compiled, transform = compile_model(model, graphs=True, verify=True)
    step(compiled, model, 0)
    assert transform.stats().not_captured == {"verify mode": 1}
