"""Residual chains summed in one launch on a GPU: the bits of nvFuser's folds, also with streams, graphs and devices."""

from typing import Any

import pytest
import thunder
import torch
from chain_sums import add_in_turn
from gpu_artifacts import capture
from models import are_same

import fusioncache
from benchmarks.common.tensors import same_bits
from fusioncache.template.plan import Plan
from fusioncache.transform import sharing

pytestmark = pytest.mark.gpu
pointer_table = pytest.importorskip("fusioncache.backends.nvfuser.pointer_table", exc_type=ImportError)


@pytest.fixture
def launches(monkeypatch) -> list[bool]:
    """A list with an item for each requested sum: whether the kernel computed it."""
    add = pointer_table.add
    made: list[bool] = []

    def counting(head: Any, terms: Any) -> Any:
        total = add(head, terms)
        made.append(total is not None)
        return total

    monkeypatch.setattr(pointer_table, "add", counting)
    return made


def compiled_with(fold: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """Returns a compiled residual stream that is folded in this way, with operations after it, and the transform."""

    def function(*inputs: Any) -> Any:
        x = inputs[0]
        for term in inputs[1:]:
            x = x + term
        return torch.tanh(x) * 2 + 1, x

    monkeypatch.setattr(sharing, "choose_plan", lambda *_: Plan.FOLD)
    transform = fusioncache.FusionCache(cache=fusioncache.Cache(), fold=fold)
    return thunder.jit(function, transforms=[transform]), transform


def stream(terms: int, dtype: torch.dtype, *shape: int) -> list[torch.Tensor]:
    return [torch.randn(*shape, device="cuda").to(dtype) for _ in range(terms + 1)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("terms", [3, 9, 33, 100])
def test_one_launch_is_bitwise_the_folds(terms, dtype, launches, monkeypatch):
    one, transform = compiled_with("triton", monkeypatch)
    folds, _ = compiled_with("nvfuser", monkeypatch)
    for _ in range(3):
        args = stream(terms, dtype, 65, 513)
        assert are_same(list(one(*args)), list(folds(*args)))
    assert launches and all(launches)
    assert not transform.stats().bypasses


@pytest.mark.parametrize(("terms", "rows", "expected"), [(9, 2048, True), (8, 2048, False), (9, 2047, False)])
def test_by_default_only_long_chains_of_large_terms(terms, rows, expected, launches, monkeypatch):
    one, _ = compiled_with("auto", monkeypatch)
    folds, _ = compiled_with("nvfuser", monkeypatch)
    args = stream(terms, torch.bfloat16, rows, 1024)
    assert are_same(list(one(*args)), list(folds(*args)))
    assert any(launches) == expected


def test_terms_that_are_not_aligned_are_folded(launches, monkeypatch):
    one, transform = compiled_with("triton", monkeypatch)
    folds, _ = compiled_with("nvfuser", monkeypatch)
    args = stream(9, torch.bfloat16, 64, 512)
    one(*args)
    launches.clear()
    shifted = [torch.cat([arg.new_zeros(1), arg.flatten()])[1:].view(64, 512) for arg in args]
    for given, made in ((shifted, False), (args[:-1] + shifted[-1:], False), (args, True)):
        assert are_same(list(one(*given)), list(folds(*given)))
        assert launches.pop() is made
    assert not transform.stats().bypasses


def test_calls_on_two_streams_do_not_mix_up_their_tables():
    chains = [stream(33, torch.bfloat16, 1024, 513 + place) for place in range(16)]
    wanted = [add_in_turn(chain) for chain in chains]
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    torch.cuda.synchronize()
    found: list[Any] = []
    for turn in range(128):
        with torch.cuda.stream(streams[turn % 2]):
            if turn < 2:
                torch.cuda._sleep(10**8)  # so that all calls are in flight at once
            chain = chains[turn % len(chains)]
            found.append(pointer_table.add(chain[0], chain[1:]))
    torch.cuda.synchronize()
    assert all(same_bits(total, wanted[turn % len(chains)]) for turn, total in enumerate(found))


def test_a_cuda_graph_captures_the_folds(launches, monkeypatch):
    one, transform = compiled_with("triton", monkeypatch)
    folds, _ = compiled_with("nvfuser", monkeypatch)
    args = stream(33, torch.bfloat16, 65, 513)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        one(*args)
    torch.cuda.current_stream().wait_stream(side)
    assert launches and all(launches)
    compiles = transform.stats().compiles
    launches.clear()
    graph, results = capture(one, *args)
    assert launches == [False] and transform.stats().compiles == compiles
    for _ in range(3):
        for arg in args:
            arg.copy_(torch.randn(arg.shape, device="cuda"))
        graph.replay()
        assert are_same(list(results), list(folds(*args)))
    assert not transform.stats().bypasses


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_a_sum_is_made_on_the_device_of_its_terms():
    first, second = ([arg.to(device) for arg in stream(9, torch.float32, 65, 513)] for device in ("cuda:0", "cuda:1"))
    for args in (first, second, first):
        total = pointer_table.add(args[0], args[1:])
        assert total is not None and total.device == args[0].device
        assert same_bits(total, add_in_turn(args))
    assert pointer_table.add(first[0], second[1:]) is None
