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
    exec(f"@torch.no_grad()\ndef computation(x):\n  {text}\n", context)
    return context.pop("computation")


def make_entry(forward, backward=None):
    return CacheEntry(None, [], forward, [], None, [], backward, [], False)


def make_compile_data(graphs, *transforms, option=CACHE_OPTIONS.CONSTANT_VALUES, calls=()):
    ours = SimpleNamespace(graphs=graphs, calls=lambda: calls)
    return SimpleNamespace(transforms=[ours, *transforms], cache_option=option)


def foreign(x):
    return x


foreign.__module__ = "somebody.elses"


class Foreign:
    __module__ = "somebody.elses"

    def __call__(self, x):
        return x


def of_thunder(x):
    return x


of_thunder.__module__ = "thunder.executors.torchex"

REASONS = {
    "return torch_all_gather_prim_impl(x)": "collectives",
    "return torch_wait_prim_impl(x)": "collectives",
    "return gather_together(x)": "collectives",
    "return landed(x)": "collectives",
    "return all_gather_and_multiply(x)": "collectives",
    "return multiply_and_reduce_scatter(x)": "collectives",
    "return torch_broadcast_prim_impl(x)": "collectives",
    "return torch_pack_for_fsdp_prim_impl(x)": "collectives",
    "return torch.Tensor.item(x)": "a value that the host reads",
    "return torch.nonzero(x)": "a value that the host reads",
    "return get_and_update_rng_state_impl(x)": "random numbers",
    "return te_linear_0(x)": "state of Transformer Engine's",
    "return foreign_3(x)": "an unknown function, foreign",
    "return an_object(x)": "an unknown function, an_object",
    "return of_thunder(x)": None,
    "return torch.nn.functional.linear(x, x)": None,
    "return torch.nn.functional.embedding(x, x), x.size(), len(x)": None,
}


@pytest.mark.parametrize("text", REASONS)
def test_the_text_says_what_is_not_captured(text):
    graphs, _, ledger = make_graphs()
    forward = compile_text(text, foreign_3=foreign, an_object=Foreign(), of_thunder=of_thunder)
    entry = capture_entry(make_entry(forward), make_compile_data(graphs))
    reason = REASONS[text]
    assert isinstance(entry.computation_fn, ForwardProgram) is (reason is None)
    assert dict(ledger.stats().not_captured) == ({} if reason is None else {reason: 1})


def write_in_place(name):
    return f"return torch.Tensor.{name}(x, 1)"


@pytest.mark.parametrize("name", ["add_", "copy_", "index_put_"])
def test_a_backward_that_writes_into_what_it_is_given(name):
    graphs, _, ledger = make_graphs()
    entry = make_entry(compile_text("return x + 1"), compile_text(write_in_place(name)))
    capture_entry(entry, make_compile_data(graphs))
    assert dict(ledger.stats().not_captured) == {"a backward pass that writes into its inputs": 1}


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda graphs: make_compile_data(graphs, CUDAGraphTransform()), "Thunder's CUDAGraphTransform captures it"),
        (
            lambda graphs: make_compile_data(graphs, type("Derived", (CUDAGraphTransform,), {})()),
            "Thunder's CUDAGraphTransform captures it",
        ),
        (
            lambda graphs: make_compile_data(graphs, option=CACHE_OPTIONS.SYMBOLIC_VALUES),
            "a function whose sizes are not fixed",
        ),
    ],
)
def test_functions_that_are_left_alone(make, reason):
    graphs, _, ledger = make_graphs()
    entry = make_entry(compile_text("return x + 1"))
    assert capture_entry(entry, make(graphs)) is entry
    assert dict(ledger.stats().not_captured) == {reason: 1}


def test_whatever_goes_wrong_leaves_the_entry():
    graphs, _, ledger = make_graphs()
    for forward, error in ((SimpleNamespace(), "TypeError"), (compile_text("return x"), "AttributeError")):
        entry = make_entry(forward)
        data = make_compile_data(graphs)
        if error == "AttributeError":
            data.transforms[0].calls = lambda: [None]
        assert capture_entry(entry, data) is entry
        assert ledger.stats().not_captured[f"failed: {error}"] == 1


def test_nothing_is_captured_or_replayed_within_a_capture():
    """Its own thread might, as where one captured program calls another one."""
    memory = make_graphs()[0].memory_of(torch.device("cpu"))
    for _ in range(2):
        assert memory.begin() is None
        assert memory.begin() == "a capture is under way"
        memory.end()
