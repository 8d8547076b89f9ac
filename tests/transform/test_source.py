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


def watched(
    model, *inputs: torch.Tensor, train: bool = True, **options
) -> tuple[list[RegionRecord], fusioncache.Cache]:
    """The regions of a model, and the cache that knows more of them."""
    cache = fusioncache.Cache(record=False)
    compiled, _ = compile_with(model, cache=cache, **options)
    if train:
        step(compiled, model, *inputs)
    else:
        with torch.no_grad():
            compiled(*inputs)
    return list(cache.ledger.history.records(RegionRecord)), cache


def of(regions: list[RegionRecord], trace: str) -> list[RegionRecord]:
    return [region for region in regions if region.trace == trace]


def line_of(function, text: str) -> Line:
    lines, first = inspect.getsourcelines(function)
    (number,) = (first + place for place, line in enumerate(lines) if text in line)
    return Line(models.__file__, number)


@pytest.fixture(scope="module")
def blocks() -> list[RegionRecord]:
    return watched(Blocks(3), torch.randn(2, 16))[0]


def test_forward_regions_carry_their_layer_and_module(blocks):
    inside = ["norm", None, None]
    expected = [
        (layer, f"blocks.{layer}.{part}" if part else f"blocks.{layer}") for layer in range(3) for part in inside
    ]
    # The last residual add is followed by the head, which is no layer.
    assert [(r.source.layer, r.source.module) for r in of(blocks, "forward")] == [*expected, (2, "blocks.2")]


def test_backward_regions_carry_their_layer_from_the_last_to_the_first(blocks):
    layers = [region.source.layer for region in of(blocks, "backward")]
    assert layers == sorted(layers, reverse=True)
    assert set(layers) == {0, 1, 2}
    norms = [region.source.module for region in of(blocks, "backward") if "norm" in str(region.source.module)]
    assert norms == ["blocks.2.norm", "blocks.1.norm"]


def test_a_function_has_lines_and_no_modules():
    def double_tanh(x):
        return torch.tanh(x) * 2

    (region,), _ = watched(double_tanh, torch.randn(3), train=False)
    assert region.model.endswith("double_tanh")
    assert (region.source.module, region.source.layer) == (None, None)
    assert [(line.file, line.library) for line in region.source.lines] == [(__file__, False)]


def test_forward_regions_carry_the_users_line_and_that_before_those_of_libraries(blocks):
    line = line_of(Block.forward, "return x +")
    first, *others = of(blocks, "forward")
    assert all(region.source.lines[0] == line for region in others)
    (library,) = first.source.lines
    assert library.library and library.file.endswith("normalization.py")
    assert [found.library for found in of(blocks, "forward")[3].source.lines] == [False, True]


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


def test_backward_regions_carry_the_lines_of_the_operations_they_are_the_gradient_of(blocks):
    line = line_of(Block.forward, "return x +")
    assert [line in region.source.lines for region in of(blocks, "backward")[1:-1]] == [True] * 8
    regions, _ = watched(Residual(2), torch.randn(10, 10))
    assert {region.source.lines for region in regions} == {(line_of(Residual.forward, "x = x +"),)}


def test_a_thunder_that_tells_nothing_costs_only_the_sources(monkeypatch):
    monkeypatch.setattr("fusioncache.transform.provenance.trace_notes.current_compilation", lambda: 1 / 0)
    regions, cache = watched(Residual(1), torch.randn(10, 10))
    assert len(regions) == cache.stats().regions == cache.stats().hits + cache.stats().misses
    assert {(region.model, region.source.lines, region.source.module) for region in regions} == {(None, (), None)}
    assert cache.ledger.phases().tracing is None


def test_a_trace_that_cannot_be_looked_through_costs_only_the_sources(monkeypatch):
    monkeypatch.setattr("fusioncache.transform.provenance.trace_notes.find_sources", lambda *_: 1 / 0)
    regions, cache = watched(Residual(1), torch.randn(10, 10))
    assert len(regions) == cache.stats().regions
    assert {region.source.lines for region in regions} == {()}
