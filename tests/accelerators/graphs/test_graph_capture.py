"""Which of Thunder's entries are captured: what a replay would not do is found in the text of the programs."""

from types import SimpleNamespace

import pytest
import torch
from captured_programs import make_graphs
from thunder import CacheEntry
from thunder.core.options import CACHE_OPTIONS
from thunder.transforms.cudagraph import CUDAGraphTransform

from fusioncache.accelerators.graphs.graph_capture import ForwardProgram, capture_entry


def compile_text(text, **names):
    """A program as Thunder compiles one of a trace, with what the names in it stand for."""
    context = {"torch": torch, **names}
    exec(f"@torch.no_grad()\ndef computation(x):\n  return {text}\n", context)
    return context.pop("computation")


def make_entry(forward, backward=None):
    return CacheEntry(None, [], forward, [], None, [], backward, [], False)


def make_compile_data(graphs, *transforms, option=CACHE_OPTIONS.CONSTANT_VALUES, calls=()):
    ours = SimpleNamespace(graphs=graphs, calls=lambda: calls)
    return SimpleNamespace(transforms=[ours, *transforms], cache_option=option)


def make_function(module):
    return type("Function", (), {"__module__": module, "__call__": lambda self, x: x})()


REASONS = {
    "torch_all_gather_prim_impl(x)": "collectives",
    "torch_wait_prim_impl(x)": "collectives",
    "gather_together(x)": "collectives",
    "landed(x)": "collectives",
    "all_gather_and_multiply(x)": "collectives",
    "multiply_and_reduce_scatter(x)": "collectives",
    "torch_broadcast_prim_impl(x)": "collectives",
    "torch_pack_for_fsdp_prim_impl(x)": "collectives",
    "torch.Tensor.item(x)": "a value that the host reads",
    "torch.nonzero(x)": "a value that the host reads",
    "get_and_update_rng_state_impl(x)": "random numbers",
    "te_linear_0(x)": "state of Transformer Engine's",
    "foreign_3(x)": "an unknown function, foreign",
    "of_thunder(x)": None,
    "torch.nn.functional.linear(x, x)": None,
    "torch.nn.functional.embedding(x, x), x.size(), len(x)": None,
}


@pytest.mark.parametrize(("text", "reason"), REASONS.items())
def test_the_text_says_what_is_not_captured(text, reason):
    graphs, _, ledger = make_graphs()
    names = {"foreign_3": "elsewhere", "of_thunder": "thunder.executors.torchex"}
    forward = compile_text(text, **{name: make_function(module) for name, module in names.items()})
    entry = capture_entry(make_entry(forward), make_compile_data(graphs))
    assert isinstance(entry.computation_fn, ForwardProgram) is (reason is None)
    assert dict(ledger.stats().not_captured) == ({} if reason is None else {reason: 1})


@pytest.mark.parametrize("name", ["add_", "copy_", "index_put_"])
def test_a_backward_that_writes_into_what_it_is_given(name):
    graphs, _, ledger = make_graphs()
    entry = make_entry(compile_text("x + 1"), compile_text(f"torch.Tensor.{name}(x, 1)"))
    capture_entry(entry, make_compile_data(graphs))
    assert dict(ledger.stats().not_captured) == {"a backward pass that writes into its inputs": 1}


OF_THUNDER = "Thunder's CUDAGraphTransform captures it"
SYMBOLIC = {"option": CACHE_OPTIONS.SYMBOLIC_VALUES}
LEFT = {
    "Thunder's transform": ([CUDAGraphTransform()], {}, OF_THUNDER),
    "one derived of it": ([type("Derived", (CUDAGraphTransform,), {})()], {}, OF_THUNDER),
    "symbolic sizes": ([], SYMBOLIC, "a function whose sizes are not fixed"),
    "calls that are none": ([], {"calls": [None]}, "failed: AttributeError"),
    "no function": ([], {}, "failed: TypeError"),
}


@pytest.mark.parametrize(("transforms", "options", "reason"), LEFT.values(), ids=LEFT)
def test_functions_that_are_left_alone(transforms, options, reason):
    graphs, _, ledger = make_graphs()
    entry = make_entry(SimpleNamespace() if "TypeError" in reason else compile_text("x + 1"))
    assert capture_entry(entry, make_compile_data(graphs, *transforms, **options)) is entry
    assert dict(ledger.stats().not_captured) == {reason: 1}


def test_nothing_is_captured_or_replayed_within_a_capture():
    """Its own thread might, as where one captured program calls another one."""
    memory = make_graphs()[0].memory_of(torch.device("cpu"))
    for _ in range(2):
        assert memory.begin() is None
        assert memory.begin() == "a capture is under way"
        memory.end()
