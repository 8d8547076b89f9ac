"""Repeats that nvFuser would compute in another order: which they are, and what nvFuser is told of them."""

import itertools
import re

import fake_cuda
import pytest
from drawn_regions import draw

from fusioncache.backends.nvfuser.definition import define, describe_contiguous, find_repeats, nvfuser_executor
from fusioncache.ir import Const, Graph, Op, Ref, TensorType


def tensor(*shape: int | Ref) -> TensorType:
    return TensorType("float32", shape, "cuda")


KEYS = (2, 3, 1, 8)
EXPANDED = "broadcast_in_dim(keys, (2, 3, 4, 8), (0, 1, 2, 3))"
"""Each of three keys four times, as four queries share it."""
HEADS = f"reshape({EXPANDED}, (2, 12, 8))"
COPIED = f"shallow_copy(reshape(shallow_copy({EXPANDED}), (2, 12, 8)))"


def region(text: str, keys: tuple[int, ...] = KEYS) -> Graph:
    return draw(text, device="cuda", keys=keys, **{"whole": (2, 3, 4, 8)} if "whole" in text else {})


@pytest.mark.parametrize(
    ("text", "keys", "found"),
    [
        (f"tanh({HEADS})", KEYS, {1}),
        (f"tanh({COPIED})", KEYS, {2}),
        (HEADS, KEYS, set()),
        (COPIED, KEYS, set()),
        ("tanh(reshape(broadcast_in_dim(keys, (2, 3, 4, 8), (0, 1, 3)), (2, 12, 8)))", (2, 3, 8), {1}),
        ("tanh(reshape(broadcast_in_dim(keys, (2, 3, 1, 8), (0, 1, 3)), (6, 8)))", (2, 3, 8), set()),
        ("tanh(reshape(broadcast_in_dim(keys, (3, 8), (1,)), (24,)))", (8,), {1}),
        ("tanh(reshape(broadcast_in_dim(keys, (3, 8), ()), (24,)))", (), {1}),
        # An operation is between the expanded keys and the reshape.
        (f"tanh(reshape(cos({EXPANDED}), (2, 12, 8)))", KEYS, {2}),
        (f"tanh(reshape(mul({EXPANDED}, {EXPANDED}), (2, 12, 8)))", KEYS, {2}),
        (f"tanh(reshape(mul({EXPANDED}, whole), (2, 12, 8)))", KEYS, set()),
        (f"tanh(reshape(transpose({EXPANDED}, (0, 2, 1, 3)), (2, 12, 8)))", KEYS, {2}),
        (f"tanh(reshape(sum({EXPANDED}, (3,)), (2, 12)))", KEYS, {2}),
        # What was merged is reshaped once more.
        (f"tanh(reshape({HEADS}, (24, 8)))", KEYS, {1}),
        (f"tanh(reshape({HEADS}, (2, 3, 4, 8)))", KEYS, {1}),
        # What stays as it is beside a merged dimension stays expanded.
        ("tanh(reshape(reshape(broadcast_in_dim(keys, (5, 3, 4), (1, 2)), (5, 12)), (60,)))", (3, 1), {1, 2}),
    ],
)
def test_repeats_of_which_something_is_computed_are_found(text, keys, found):
    graph = region(text, keys)
    assert find_repeats(graph, [None] * len(graph.inputs)) == found


@pytest.mark.parametrize(
    ("shape", "contiguity", "found"),
    [
        ((2, 3, 4, 8), (True, True, None, True), {0}),
        ((2, 3, 4, 8), (True, True, True, True), set()),
        ((2, 3, 1, 8), (True, True, None, True), set()),
    ],
)
def test_an_argument_may_be_expanded(shape, contiguity, found):
    batch, groups, queries, size = shape
    graph = region(f"tanh(reshape(keys, ({batch}, {groups * queries}, {size})))", shape)
    assert find_repeats(graph, [(contiguity, (3, 2, 1, 0), ())]) == found


def test_a_repeat_of_any_length_is_found():
    length = Ref(1)
    expanded, heads = tensor(2, 4, length), tensor(8, length)
    sizes = tuple(Const("int", str(size)) for size in (2, 4)), tuple(Const("int", str(size)) for size in (0, 1, 2))
    ops = (
        Op("prims.broadcast_in_dim", (Ref(0), (*sizes[0], length), sizes[1]), (expanded,)),
        Op("prims.reshape", (Ref(2), (Const("int", "8"), length)), (heads,)),
        Op("prims.tanh", (Ref(3),), (heads,)),
    )
    assert find_repeats(Graph((tensor(2, 1, length),), ops, (4,), sizes=1), [None]) == {1}


def write(graph: Graph) -> str:
    fake_cuda.find_nvfuser_executor()
    with fake_cuda.pretend_gpu():
        return repr(define(graph, describe_contiguous(graph)))


@pytest.mark.parametrize("heads", [HEADS, COPIED])
def test_nvfuser_is_told_to_copy_what_is_repeated(heads):
    calls = re.findall(r"(tv\d+) = fd\.ops\.(\w+)\((tv\d+)", write(region(f"tanh({heads})")))
    # nvFuser writes a copy as a cast to the type that it has.
    assert [name for _, name, _ in calls] == ["expand", "reshape", "cast", "tanh"]
    assert all(operand == result for (result, *_), (*_, operand) in itertools.pairwise(calls))


@pytest.mark.parametrize(
    "text",
    [
        HEADS,
        f"tanh(reshape(mul({EXPANDED}, whole), (2, 12, 8)))",
        "tanh(reshape(broadcast_in_dim(keys, (2, 3, 1, 8), (0, 1, 2, 3)), (6, 8)))",
    ],
)
def test_of_all_else_it_is_told_what_thunder_tells_it(text):
    from fusioncache.backends.bound_symbols import bind

    graph = region(text)
    found = write(graph)
    with fake_cuda.pretend_gpu():
        bound = bind(graph)
        thunders = nvfuser_executor().create_fd(
            bound.bound_symbols, describe_contiguous(graph), list(bound.inputs), list(bound.outputs)
        )
    assert found == repr(thunders)
