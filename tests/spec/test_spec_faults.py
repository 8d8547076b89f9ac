"""The cache never makes a model fail: it falls back, warns once, and counts the reason."""

import warnings

import pytest
import thunder
import torch

import fusioncache
from fusioncache.backends.eager import Eager


def compute(x):
    return torch.tanh(x * 2.0) + 1.0


def call(cache, x, backend="eager"):
    transform = fusioncache.FusionCache(backend=backend, cache=cache, jobs=0)
    compiled = thunder.jit(compute, executors=fusioncache.executors(), transforms=[transform])
    return compiled(x), transform.stats()


def test_a_store_that_is_a_file_costs_one_warning(tmp_path):
    place = tmp_path / "store"
    place.write_text("mine")
    with pytest.warns(RuntimeWarning, match="not stored") as caught:
        cache = fusioncache.Cache(store=place)
        results = [call(cache, torch.ones(2))[0] for _ in range(2)]
    assert len([each for each in caught if "not stored" in str(each.message)]) == 1
    assert all(torch.equal(result, compute(torch.ones(2))) for result in results)
    assert place.read_text() == "mine"


def test_each_damaged_file_of_a_store_is_a_miss(tmp_path):
    x = torch.ones(3, 4)
    assert call(fusioncache.Cache(store=tmp_path), x, "inductor")[1].compiles == 1
    for file in [path for path in tmp_path.rglob("*") if path.is_file() and path.parent.parent.name == "objects"]:
        file.chmod(0o600)
        file.write_bytes(file.read_bytes()[:-1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result, stats = call(fusioncache.Cache(store=tmp_path), x, "inductor")
    assert torch.allclose(result, compute(x))
    assert (stats.compiles, stats.loads, stats.programs_loaded) == (1, 0, 0)


def test_an_empty_store_is_no_fault(tmp_path):
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="fusioncache")
        result, stats = call(fusioncache.Cache(store=tmp_path / "new" / "store"), torch.ones(2))
    assert torch.equal(result, compute(torch.ones(2)))
    assert (stats.bypasses, stats.programs_made) == ({}, 1)


def test_a_compiler_that_fails_costs_one_warning(monkeypatch):
    def fail(self, graph, args):
        raise RuntimeError("no such instruction")

    monkeypatch.setattr(Eager, "compile", fail)
    transform = fusioncache.FusionCache(backend="eager", cache=fusioncache.Cache())
    compiled = thunder.jit(compute, executors=fusioncache.executors(), transforms=[transform])
    with pytest.warns(RuntimeWarning, match="no such instruction") as caught:
        for x in (torch.ones(2, 3), torch.ones(3, 2).t(), torch.ones(4, 5)):
            assert torch.equal(compiled(x), compute(x))
    assert len([each for each in caught if "no such instruction" in str(each.message)]) == 1
    assert transform.stats().bypasses["compile failed: RuntimeError"] > 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"backend": "nvfusor"}, "unknown backend 'nvfusor'"),
        ({"cache": "here"}, "cache must be a fusioncache.Cache"),
        ({"sizes": "any"}, "sizes must be 'auto', 'static' or 'dynamic'"),
        ({"accelerators": ["speed"]}, "accelerators must be names out of"),
    ],
    ids=["backend", "cache", "sizes", "accelerators"],
)
def test_a_wrong_option_is_explained(options, said):
    with pytest.raises((TypeError, ValueError), match=said):
        fusioncache.FusionCache(**options)
