"""Captures are found by a program's text and a call's kind; each difference between calls makes another kind."""

from types import SimpleNamespace

import pytest
import torch
from captured_programs import capture, make_graphs, make_input
from own_tensors import Own
from thunder import CacheEntry
from thunder.core.options import CACHE_OPTIONS
from thunder.transforms.cudagraph import CUDAGraphTransform

from fusioncache.accelerators.graphs.calls import KindReader
from fusioncache.accelerators.graphs.graph_capture import ForwardProgram, capture_entry
from fusioncache.ir.errors import Declined


def make():
    return [torch.zeros(2, 3), torch.nn.Parameter(torch.zeros(4)), 1.0]


OTHERS = {
    "strides": (0, torch.zeros(3, 2).t()),
    "strides of a parameter": (1, torch.nn.Parameter(torch.zeros(8)[::2])),
    "a parameter": (0, torch.nn.Parameter(torch.zeros(2, 3))),
    "no parameter": (1, torch.zeros(4)),
    "negative": (0, torch._neg_view(torch.zeros(2, 3))),
    "number": (2, 2.0),
    "type of a number": (2, 1),
    "nothing": (2, None),
}


@pytest.mark.parametrize(("place", "other"), OTHERS.values(), ids=OTHERS)
def test_calls_that_are_alike_are_of_one_kind_and_each_difference_is_another(place, other):
    reader = KindReader(make())
    (kind,) = {reader.kind_of(make()) for _ in range(3)}
    changed = make()
    changed[place] = other
    found = [reader.kind_of(changed) for _ in range(2)]
    assert found[0] is found[1] is not kind
    assert reader.kind_of(make()) is kind
    assert KindReader(make()).kind_of(make()) != kind


def test_no_tensor_where_others_had_one():
    reader = KindReader(make())
    reader.kind_of(make())
    for other in (None, 3, "text"):
        with pytest.raises(Declined, match="an argument that cannot be compared with those of earlier calls"):
            reader.kind_of([torch.zeros(2, 3), other, 1.0])


def test_inference_mode_is_no_trap():
    function = lambda x: (x * 2 + 1,)  # noqa: E731
    captured, _, ledger = capture(function)
    for seed in range(3):
        with torch.inference_mode():
            assert torch.equal(captured(make_input(seed))[0], function(make_input(seed))[0])
    for seed in range(3):
        (result,) = captured(make_input(seed))
        assert torch.equal(result, function(make_input(seed))[0])
        result.add_(1)
    assert ledger.stats().captures == 1


def test_a_tensor_of_another_class_runs_as_it_is():
    captured, _, ledger = capture(lambda x: (x + 1,))
    for seed in range(3):
        captured(make_input(seed))
    (result,) = captured(make_input(1).as_subclass(Own))
    assert type(result) is Own
    assert ledger.stats().graph_replays == 2
    assert dict(ledger.stats().not_captured) == {"it takes a value of type Own": 1}


def test_there_is_a_limit_to_kinds(monkeypatch):
    monkeypatch.setattr("fusioncache.accelerators.graphs.calls.MAX_KINDS", 2)
    captured, _, ledger = capture(lambda x, factor: (x * factor,))
    for factor in (1, 2, 3, 3, 1, 2):
        assert torch.equal(captured(make_input(1), factor)[0], make_input(1) * factor)
    assert dict(ledger.stats().not_captured) == {"more than 2 kinds of inputs": 2}
    assert ledger.stats().captures == 2


def write(x, target):
    target.copy_(x)
    return (target + 1,)


WRITES = {
    "that lies still": (True, True, None),
    "that moves, as is known": (True, False, "it writes into arguments whose addresses change"),
    "that moves, as the capture shows": (False, False, "it writes into an argument whose address changes"),
}


@pytest.mark.parametrize(("is_known", "lies_still", "reason"), WRITES.values(), ids=WRITES)
def test_what_is_written_into_an_argument(is_known, lies_still, reason):
    captured, _, ledger = capture(write, writes=is_known)
    x, target = torch.ones(3), torch.zeros(3)
    for value in range(5):
        if not lies_still:
            x, target = x.clone(), target.clone()
        x.fill_(value)
        assert torch.equal(captured(x, target)[0], x + 1)
        assert torch.equal(target, x)
    assert dict(ledger.stats().not_captured) == ({reason: 1} if reason else {})
    assert ledger.stats().graph_replays == (0 if reason else 4)


def compile_text(text, **names):
    """Returns a function compiled from an expression, as Thunder compiles a trace; ``names`` are its globals."""
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
    """Not even by the capturing thread, for example if one captured program calls another one."""
    memory = make_graphs()[0].memory_of(torch.device("cpu"))
    for _ in range(2):
        memory.begin()
        with pytest.raises(Declined, match="a capture is under way"):
            memory.begin()
        memory.end()
