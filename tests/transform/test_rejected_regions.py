"""A model with a region that its compiler rejects runs, is warned of once, and costs the next process nothing."""

import pytest
import thunder
import torch
from models import are_same
from store_contents import collect_warnings
from store_processes import PersistentEager

import fusioncache

pytestmark = pytest.mark.usefixtures("eager_regions")

MESSAGE = """ INTERNAL ASSERT FAILED at fusion_kernel_runtime.cpp:476, please report a bug
Error from segmentation group 1: Expected last_alloc_dim == vec_alloc_id . Vectorized dim is no innermost one. tv: T81
Exception raised from validate"""
ERRORS = {"compile": MESSAGE, "once": "CUDA error: out of resources"}


def fail_to_launch(args):
    raise RuntimeError("too many resources requested for launch\nand more")


class Picky(PersistentEager):
    """Rejects regions with an erf beside a sin, as nvFuser would; or they do not launch, or fail once."""

    compiles = True

    def __init__(self, fails="compile"):
        super().__init__()
        self.fails = fails
        self.rejected = 0

    def compile(self, graph, args):
        picked = {"prims.sin", "prims.erf"} <= {op.name for op in graph.ops}
        self.rejected += picked
        if picked and self.fails in ERRORS:
            raise RuntimeError(ERRORS[self.fails])
        return fail_to_launch if picked and self.fails == "launch" else super().compile(graph, args)

    @classmethod
    def find_rejection(cls, error):
        from fusioncache.backends.nvfuser.backend import NvFuser

        return NvFuser.find_rejection(error)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        h = torch.sin(self.linear(x))
        for scale in (0.5, 1.5, 2.5, 3.5):
            h = torch.tanh(h * scale) + x
        return torch.erf(h) * 2


def step(model, call, length):
    model.zero_grad()
    result = call(torch.linspace(-1, 1, 4 * length).reshape(length, 4))
    result.sum().backward()
    return [result.detach(), *(each.grad.clone() for each in model.parameters())]


def train(backend, store, monkeypatch, *lengths):
    """Returns results, counts and warnings of a process that takes two steps at each length, as eager PyTorch does."""
    monkeypatch.setattr("fusioncache.transform.shared_region.make_backend", lambda name, **_: backend)
    cache = fusioncache.Cache(store=store, record=False)
    transform = fusioncache.FusionCache(cache=cache, programs=False, jobs=0)
    model = Model()
    compiled = thunder.jit(model, executors=fusioncache.executors(), transforms=[transform])
    with collect_warnings() as messages:
        found = [step(model, compiled, length) for length in lengths for _ in range(2)]
    torch.testing.assert_close(found, [step(model, model, length) for length in lengths for _ in range(2)])
    return found, transform.stats(), [each for each in messages if "rejected" in each]


@pytest.mark.parametrize("fails", ["compile", "launch"])
def test_a_rejected_region_runs_in_pieces_and_the_next_process_knows_it(tmp_path, monkeypatch, fails):
    first = Picky(fails)
    found, stats, messages = train(first, tmp_path, monkeypatch, 3)
    (reason,) = stats.bypasses
    assert reason.startswith("rejected by torch: runs in ") and first.rejected == 1
    (message,) = messages
    assert "test_rejected_regions.py" in message
    assert ("Vectorized dim is no innermost one." in message) == (fails == "compile") and "tv:" not in message
    second = Picky(fails)
    again, stats, _ = train(second, tmp_path, monkeypatch, 3)
    assert all(map(are_same, again, found))
    assert (second.rejected, second.compiled, stats.compiles) == (0, [], 0)
    assert dict(stats.bypasses) == {reason: 1}


@pytest.mark.parametrize("lengths", [(3, 5, 6, 7), (3,)], ids=["with a store", "without"])
def test_other_lengths_are_not_rejected_again_and_without_a_store_it_runs_as_well(tmp_path, monkeypatch, lengths):
    backend = Picky()
    _, stats, messages = train(backend, tmp_path if len(lengths) > 1 else False, monkeypatch, *lengths)
    assert 1 <= len(stats.bypasses) <= len(messages) <= len(lengths)
    # Once with its own sizes, and once for any: the pieces of the first length serve the others.
    assert backend.rejected <= 2
    assert bool(stats.general_hits) == (len(lengths) > 1)


def test_an_error_that_may_pass_is_not_remembered(tmp_path, monkeypatch):
    _, stats, messages = train(Picky("once"), tmp_path, monkeypatch, 3)
    assert dict(stats.bypasses) == {"compile failed: RuntimeError": 1} and not messages
    second = Picky("never")
    _, stats, _ = train(second, tmp_path, monkeypatch, 3)
    assert second.rejected == stats.compiles == 1 and not stats.bypasses


@pytest.mark.gpu
def test_a_model_that_thunder_alone_cannot_train(tmp_path):
    from benchmarks.zoo.token_models import VOCABULARY, Convolutional

    def step(model, call):
        tokens = torch.randint(0, VOCABULARY, (2, 64), generator=torch.Generator().manual_seed(0)).cuda()
        model.zero_grad()
        loss = torch.nn.functional.cross_entropy(call(tokens).flatten(0, 1).float(), tokens.flatten())
        loss.backward()
        torch.cuda.synchronize()
        return [loss.detach(), *(each.grad.clone() for each in model.parameters())]

    def process():
        torch.manual_seed(1)
        model = Convolutional().cuda().to(torch.bfloat16)
        cache = fusioncache.Cache(store=tmp_path, record=False)
        transform = fusioncache.FusionCache(cache=cache, programs=False, jobs=0)
        call = thunder.jit(model, transforms=[transform])
        found = [step(model, call) for _ in range(3)]
        return found, transform.stats(), step(model, model)

    found, stats, eager = process()
    (reason,) = stats.bypasses
    assert reason.startswith("rejected by nvFuser: runs in ")
    for one, other in zip(found[0], eager, strict=True):
        torch.testing.assert_close(one.float(), other.float(), rtol=0.1, atol=0.02)
    again, later, _ = process()
    assert later.compiles == 0 and dict(later.bypasses) == dict(stats.bypasses)
    assert all(map(are_same, again, found))
