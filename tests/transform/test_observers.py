"""Whoever wants to know is told of each function that is compiled or loaded, and of regions compiled by themselves."""

import thunder
import torch
from store_processes import PersistentEager

import fusioncache
from fusioncache.observe.record.events import CompileEvent


def function(x):
    return torch.tanh(x) * 2 + 1


def run(monkeypatch, directory) -> tuple[list[CompileEvent], fusioncache.Cache]:
    monkeypatch.setattr("fusioncache.transform.shared_region.make_backend", lambda *args, **options: PersistentEager())
    cache, told = fusioncache.Cache(record=False, store=directory), []
    cache.ledger.observers.append(told.append)
    transform = fusioncache.FusionCache(cache=cache, backend="eager")
    compiled = thunder.jit(function, transforms=[transform], executors=fusioncache.executors())
    for _ in range(2):
        compiled(torch.ones(3, 4))
    return told, cache


def test_compiling_and_loading_are_told_once(monkeypatch, tmp_path):
    (event,), cache = run(monkeypatch, tmp_path)
    (template,) = cache.templates()
    assert (event.backend, event.loaded, event.template.key.digest) == ("eager", False, template.digest)
    assert event.seconds > 0 and cache.store.load(event.key, "eager")
    (again,), _ = run(monkeypatch, tmp_path)
    assert again.loaded and (again.key, again.graph) == (event.key, event.graph)


def test_a_region_that_is_compiled_by_itself_is_told(monkeypatch):
    monkeypatch.setattr("fusioncache.transform.executor.best_backend", lambda device: "eager")
    executors, told = fusioncache.executors(), []
    monkeypatch.setattr(executors[-1], "observers", [told.append])
    compiled = thunder.jit(function, executors=executors)
    for _ in range(2):
        compiled(torch.ones(3, 4))
    (event,) = told
    assert (event.backend, event.template, event.key) == ("eager", None, None) and event.seconds > 0
