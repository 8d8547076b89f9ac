"""Sizes that come again are launched without nvFuser's call: what is launched, and for what, on a GPU."""

import pytest
import thunder
import torch
from gpu_artifacts import are_same
from threads_at_once import run_at_once

import fusioncache
from fusioncache.backends.nvfuser import repeated_sizes
from fusioncache.backends.nvfuser.repeated_sizes import AFTER

pytestmark = pytest.mark.gpu

FIRST, GENERAL = (64, 96), 200


def function(x, weight):
    y = torch.tanh(x * weight) * 0.3 + x
    return torch.nn.functional.pad(y, (0, 0, 0, 256 - x.shape[1])), y.sum(-1), y * (1 / x.shape[1])


@pytest.fixture
def launched(monkeypatch):
    """For each capture what it gave, or what it raised; captures are made as soon as they are due."""
    made = []

    def launch(run, args):
        try:
            made.append(original(run, args))
        except Exception as error:
            made.append(error)
            raise
        return made[-1]

    original = repeated_sizes.launch_of
    monkeypatch.setattr(repeated_sizes, "launch_of", launch)
    monkeypatch.setattr(repeated_sizes, "PART", 0)
    return made


def inputs(length, dtype=torch.float32):
    return torch.randn(3, length, 8, device="cuda", dtype=dtype), torch.randn(8, device="cuda", dtype=dtype)


def compiled_for_any_length(dtype=torch.float32):
    compiled = thunder.jit(function, transforms=[fusioncache.FusionCache(cache=fusioncache.Cache())])
    for length in FIRST:
        compiled(*inputs(length, dtype))
    return compiled


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_length_that_comes_again_has_the_same_bits(launched, dtype):
    compiled, (x, weight) = compiled_for_any_length(dtype), inputs(GENERAL, dtype)
    expected = list(compiled(x, weight))
    for _ in range(2 * AFTER):
        assert are_same(list(compiled(x, weight)), expected)
    assert launched and all(callable(each) for each in launched), launched
    for _ in range(3):  # other values, at other addresses
        x, weight = inputs(GENERAL, dtype)
        fresh = compiled_for_any_length(dtype)
        assert are_same(list(compiled(x, weight)), list(fresh(x, weight)))


def test_other_lengths_go_on_as_before(launched):
    compiled = compiled_for_any_length()
    fresh = compiled_for_any_length()
    for _ in range(2 * AFTER):
        compiled(*inputs(GENERAL))
    captures = len(launched)
    for length in (201, 77, GENERAL, 96):
        x, weight = inputs(length)
        assert are_same(list(compiled(x, weight)), list(fresh(x, weight)))
    assert captures and len(launched) == captures


def test_arguments_that_are_aligned_otherwise_go_to_nvfuser(launched):
    compiled = compiled_for_any_length()
    for _ in range(2 * AFTER):
        compiled(*inputs(GENERAL))
    assert launched
    weight = inputs(GENERAL)[1]
    for shift in (1, 2, 3):
        x = torch.randn(3 * GENERAL * 8 + shift, device="cuda")[shift:].view(3, GENERAL, 8)
        assert are_same(list(compiled(x, weight)), list(compiled_for_any_length()(x, weight)))


def test_threads_and_streams(launched):
    compiled, (x, weight) = compiled_for_any_length(), inputs(GENERAL)
    expected = [*map(list, [compiled(x, weight) for _ in range(2 * AFTER)])][-1]
    assert launched

    def call():
        with torch.cuda.stream(torch.cuda.Stream()):
            results = list(compiled(x, weight))
            torch.cuda.current_stream().synchronize()
        assert are_same(results, expected)

    torch.cuda.synchronize()
    run_at_once(*[call] * 4)


def test_large_arguments_stay_with_nvfuser(launched, monkeypatch):
    monkeypatch.setattr(repeated_sizes, "MOST_BYTES", 1000)
    compiled = compiled_for_any_length()
    for _ in range(2 * AFTER):
        compiled(*inputs(GENERAL))
    assert launched and all(str(each) == "large arguments" for each in launched)


def test_a_training_step_at_a_length_that_comes_again(launched):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.GELU(), torch.nn.LayerNorm(16)).to("cuda")
    compiled = thunder.jit(model, transforms=[fusioncache.FusionCache(cache=fusioncache.Cache())])

    def step(length):
        model.zero_grad()
        out = compiled(torch.ones(2, length, 16, device="cuda") * length)
        out.square().sum().backward()
        return [out.detach().clone(), *(parameter.grad.clone() for parameter in model.parameters())]

    for length in FIRST:
        step(length)
    expected = step(GENERAL)
    for _ in range(2 * AFTER):
        assert are_same(step(GENERAL), expected)
    assert len(launched) > 1 and all(callable(each) for each in launched), launched
