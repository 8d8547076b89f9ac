"""Tokens of a model with a key-value cache are replayed where token and position lie still."""

import pytest
import thunder
import torch
from fake_graphs import FakeRecorder
from generating_models import Places, find_caches, generate, make_model, make_prompt

import fusioncache

COUNT = 8


@pytest.fixture(autouse=True)
def _eager_regions(eager_regions):
    """What Thunder alone runs is to have the same bits."""


@pytest.fixture
def models(monkeypatch):
    """A model that is captured and one with Thunder alone, both with their modules, and the transform."""
    transform = fusioncache.FusionCache(cache=fusioncache.Cache(record=False), backend="eager", graphs=True)
    recorder = FakeRecorder()
    monkeypatch.setattr(transform.graphs, "find_recorder", lambda device: recorder)
    captured, plain = make_model(), make_model()
    executors = fusioncache.executors()
    compiled = thunder.jit(captured, executors=executors, transforms=[transform])
    return (compiled, captured), (thunder.jit(plain, executors=executors), plain), transform


def assert_equal(found, expected):
    assert len(found) == len(expected)
    assert all(map(torch.equal, found, expected))


@torch.no_grad()
def test_tokens_that_lie_still_are_replayed_and_write_into_their_caches(models):
    (compiled, model), (plain, module), transform = models
    places, prompt = Places(), make_prompt(7)
    for turn in range(3):
        before = transform.stats().graph_replays
        assert_equal(places.generate(compiled, prompt, COUNT), generate(plain, prompt, COUNT))
        assert_equal(list(find_caches(model)), list(find_caches(module)))
        if turn:
            assert transform.stats().graph_replays == before + COUNT - 1
        for own in (model, module):
            for cache in find_caches(own):
                cache.mul_(0.5)
    assert transform.stats().captures == 1
    for each, own in ((compiled, model), (plain, module)):
        cache = own.transformer.h[0].attn.kv_cache
        cache.k = cache.k * 1.5
        each.set_buffer("transformer.h.0.attn.kv_cache.k", cache.k)
    assert_equal(places.generate(compiled, prompt, COUNT), generate(plain, prompt, COUNT))
    assert_equal(list(find_caches(model)), list(find_caches(module)))
