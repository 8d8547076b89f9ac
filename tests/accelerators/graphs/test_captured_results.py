"""Results that leave a graph and arguments that enter it: equal values, strides and sharing of memory."""

import pytest
import torch
from captured_programs import capture
from hypothesis import given, settings
from hypothesis import strategies as st
from own_tensors import Own

from fusioncache.accelerators.graphs.buffers import make_buffer, overlaps
from fusioncache.accelerators.graphs.calls import flatten_structure
from fusioncache.ir.errors import Declined
from fusioncache.template.strides import Strided


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


FUNCTIONS = {
    "an argument": lambda x, still: (x, x + still),
    "a result twice": lambda x, still: (total := x + still, total),
    "a view of an argument": lambda x, still: (x[1:], x.t(), x + still),
    "one view of an argument twice": lambda x, still: {"a": ((view := x[1:]), x + still), "b": [view]},
    "a view of one that lies still": lambda x, still: (still.t(), still[1:, 1:], x + 1),
    "two views of one result": lambda x, still: ((total := x + still).t(), total[0], total[1:, ::2]),
    "a result and its numbers, detached": lambda x, still: (
        (result := torch.complex(x, x + still)),
        torch.view_as_real(result).detach(),
        torch.view_as_real(result),
    ),
    "a result and a part of it, detached": lambda x, still: ((total := x + still), total.detach()[1:], total.detach()),
    "a result full of holes": lambda x, still: ((x + still)[:, ::2],),
    "a result with strides of 0": lambda x, still: ((x + still).sum(0).expand(5, -1), (x + still)[:1].expand(3, -1)),
    "an empty result": lambda x, still: (x[:0] + 1, x.new_zeros(0, 3), x + still),
    "constants": lambda x, still: (None, 3, 2.5, True, "text", x + still),
    "other dtypes": lambda x, still: ((x + still).bfloat16(), x > still, (x * 9).long(), x + 0j, x.double()),
    "a channels-last result": lambda x, still: ((x + still)[None, None].to(memory_format=torch.channels_last),),
    "nested results": lambda x, still: {"a": [x + still, (x, {"b": (x - 1,)})], "c": (), "d": [(), x * 2]},
    "a number": lambda x, still: ((x + still).sum(), x.sum().reshape(1)),
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_results_are_as_without_a_graph(function):
    captured, recorder, ledger = capture(function)
    still = numbers(4, 4, seed=99)
    kept = []
    for seed in range(5):
        x = numbers(4, 4, seed=seed)
        (found, build), (expected, _) = flatten_structure(captured(x, still)), flatten_structure(function(x, still))
        kept.append((found, expected))
        assert type(build(found)) is type(function(x, still))
        assert list(map(describe, found)) == list(map(describe, expected))
        assert relate(*found, x, still) == relate(*expected, x, still)
    assert ledger.stats().captures == 1, ledger.stats().not_captured
    # Results that were returned before are unchanged.
    pairs = [pair for both in kept for pair in zip(*both, strict=True) if isinstance(pair[0], torch.Tensor)]
    assert all(torch.equal(*pair) for pair in pairs)
    places = {found.untyped_storage().data_ptr() for found, _ in pairs if found.numel()}
    assert not places & recorder.pool.addresses()


def describe(value):
    """Returns a tensor's dtype, shape and strides, or the type of another value and the value."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape, value.stride()
    return type(value), value


def relate(*values):
    """Returns which tensors are the same object, and which share memory."""
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    places = [tensor.untyped_storage().data_ptr() if tensor.numel() else id(tensor) for tensor in tensors]
    one_tensor = [[one is other for other in tensors] for one in tensors]
    return one_tensor, [[one == other for other in places] for one in places]


SPECIAL = "a sparse, quantized, conjugated or negated tensor"
REFUSED = {
    "a set": (lambda x: ({1, 2}, x + 1), "it returns a value of type set"),
    "a tensor of another class": (lambda x: (x.as_subclass(Own),), "it returns a value of type Own"),
    "a sparse tensor": (lambda x: (x.to_sparse(),), f"it returns {SPECIAL}"),
    "a conjugate": (lambda x: ((x + 0j).conj(),), f"it returns {SPECIAL}"),
    "another device": (lambda x: (x.new_ones(2, device="meta"),), "results on several devices"),
    "other bits of an argument": (
        lambda x: (x.view(torch.int32),),
        "a result that is a view of an argument in another dtype",
    ),
    "arguments on two devices": (
        *(lambda x, other: (x,), "tensors on several devices"),
        *(torch.ones(2), torch.ones(2, device="meta")),
    ),
    "no tensor": (lambda *numbers: numbers, "no tensor among its arguments", 1, 2),
    "a sparse argument": (lambda x: (x,), f"it takes {SPECIAL}", torch.ones(2).to_sparse()),
    "an argument of another class": (lambda x: (x,), "it takes a value of type Own", torch.ones(2).as_subclass(Own)),
    "random numbers": (lambda x: (x * torch.rand(3),), "random numbers"),
}
"""Functions that are not captured, each with the reason and its arguments, if given."""


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_what_a_graph_cannot_take_or_give_again(case):
    function, reason, *args = case
    captured, _, ledger = capture(function)
    for seed in range(4):
        given = args or [numbers(2, 3, seed=seed)]
        found, expected = captured(*given), function(*given)
        assert list(map(describe, found)) == list(map(describe, expected))
    assert ledger.stats().captures == 0
    assert dict(ledger.stats().not_captured) == {reason: 1}


LAYOUTS = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.t(),
    "sliced": lambda x: x[:, 1::2],
    "expanded": lambda x: x[:, :1].expand(-1, 7),
    "expanded number": lambda x: x.sum().expand(3, 4),
    "not aligned": lambda x: x.flatten()[3:],
    "a number": lambda x: x.sum(),
    "empty": lambda x: x[:0],
    "bytes, not aligned": lambda x: x.to(torch.uint8).flatten()[5:],
}


@pytest.mark.parametrize("lay_out", LAYOUTS.values(), ids=LAYOUTS)
def test_a_buffer_lies_as_the_argument_does(lay_out):
    one, other = (lay_out(numbers(4, 6, seed=seed)) for seed in range(2))
    buffer = make_buffer(one)
    for argument in (one, other):
        buffer.fill(argument)
        assert torch.equal(buffer.tensor, argument)
        assert buffer.tensor.stride() == argument.stride()
        assert buffer.tensor.data_ptr() % 16 == one.data_ptr() % 16 or not argument.numel()


def test_an_argument_whose_elements_lie_over_each_other_has_no_buffer():
    with pytest.raises(Declined, match="an argument whose elements overlap in memory"):
        make_buffer(numbers(12).unfold(0, 4, 2))


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 9)), max_size=4))
@settings(max_examples=200)
def test_what_does_not_overlap_has_a_place_for_each_element(dimensions):
    shape, strides = tuple(size for size, _ in dimensions), tuple(stride for _, stride in dimensions)
    places = torch.arange(200).as_strided(shape, strides).flatten().tolist()
    has_place_for_each = len(set(places)) == len(places)
    assert overlaps(shape, strides) or has_place_for_each
    assert not Strided(shape, strides).is_dense or (has_place_for_each and max(places) == len(places) - 1)
