"""Where regions come from: the layer, the module and the user's line of each, in whole models without a compiler."""

import inspect
from pathlib import Path

import models
import pytest
import thunder
import torch
from models import Block, Blocks, Residual, compile_with, step

import fusioncache
from fusioncache.observe.record.observations import Line, RegionRecord
from fusioncache.transform.provenance.source import is_library, library_folders


def watched(model, x: torch.Tensor) -> tuple[list[RegionRecord], fusioncache.Cache]:
    cache = fusioncache.Cache(record=False)
    compiled, _ = compile_with(model, cache=cache)
    step(compiled, model, x)
    return list(cache.ledger.history.records(RegionRecord)), cache


def line_of(function, text: str) -> Line:
    lines, first = inspect.getsourcelines(function)
    (number,) = (first + place for place, line in enumerate(lines) if text in line)
    return Line(models.__file__, number)


def test_regions_carry_their_layer_their_module_and_the_users_line():
    regions, _ = watched(Blocks(3), torch.randn(2, 16))
    forward, backward = ([each for each in regions if each.trace == trace] for trace in ("forward", "backward"))
    modules = [f"blocks.{layer}{part}" for layer in range(3) for part in (".norm", "", "")]
    # The last residual add is followed by the head, which is no layer.
    assert [each.source.module for each in forward] == [*modules, "blocks.2"]
    assert [each.source.layer for each in forward] == [0, 0, 0, 1, 1, 1, 2, 2, 2, 2]
    layers = [each.source.layer for each in backward]
    assert layers == sorted(layers, reverse=True) and set(layers) == {0, 1, 2}
    norms = [each.source.module for each in backward if "norm" in str(each.source.module)]
    assert norms == ["blocks.2.norm", "blocks.1.norm"]
    # The users' lines come before those of libraries.
    line = line_of(Block.forward, "return x +")
    assert all(each.source.lines[0] == line for each in forward[1:])
    (library,) = forward[0].source.lines
    assert library.library and library.file.endswith("normalization.py")
    assert [found.library for found in forward[3].source.lines] == [False, True]
    # Backward regions have those of the operations that they are the gradient of.
    assert [line in each.source.lines for each in backward[1:-1]] == [True] * 8


def test_a_stream_has_one_line_and_a_function_has_lines_and_no_modules():
    def double_tanh(x):
        return torch.tanh(x) * 2

    regions, _ = watched(Residual(2), torch.randn(10, 10))
    assert {region.source.lines for region in regions} == {(line_of(Residual.forward, "x = x +"),)}
    cache = fusioncache.Cache(record=False)
    compile_with(double_tanh, cache=cache)[0](torch.randn(3))
    (region,) = cache.ledger.history.records(RegionRecord)
    assert region.model.endswith("double_tanh")
    assert (region.source.module, region.source.layer) == (None, None)
    assert [(line.file, line.library) for line in region.source.lines] == [(__file__, False)]


def test_torch_and_thunder_are_libraries_wherever_they_are_installed(monkeypatch):
    for package in (torch, thunder):
        file = Path(package.__file__).with_name("functional.py")
        assert is_library(str(file))
        monkeypatch.setattr(package.__spec__, "submodule_search_locations", ["/elsewhere/" + package.__name__])
    is_library.cache_clear(), library_folders.cache_clear()
    try:
        assert is_library("/elsewhere/thunder/clang.py") and is_library("/elsewhere/torch/nn/functional.py")
        assert not is_library("/elsewhere/model.py")
    finally:
        is_library.cache_clear(), library_folders.cache_clear()


@pytest.mark.parametrize("what", ["current_compilation", "find_sources"])
def test_a_thunder_that_tells_nothing_and_a_trace_that_cannot_be_read_cost_only_the_sources(what, monkeypatch):
    monkeypatch.setattr(f"fusioncache.transform.provenance.trace_notes.{what}", lambda *_: 1 / 0)
    regions, cache = watched(Residual(1), torch.randn(10, 10))
    assert len(regions) == cache.stats().regions == cache.stats().hits + cache.stats().misses
    assert {region.source.lines for region in regions} == {()}
    if what == "current_compilation":
        assert {(region.model, region.source.module) for region in regions} == {(None, None)}
        assert cache.ledger.phases().tracing is None
