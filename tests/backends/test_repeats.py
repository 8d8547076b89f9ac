"""Repeats that nvFuser would compute in another order: which they are, and what nvFuser is told of them."""

import itertools
import re

import fake_cuda
import pytest
from drawn_regions import Sketch

from fusioncache.backends.nvfuser.definition import define, describe_contiguous, find_repeats, nvfuser_executor
from fusioncache.ir import Const, Graph, Op, Ref, TensorType


def tensor(*shape: int | Ref) -> TensorType:
    return TensorType("float32", shape, "cuda")


KEYS, EXPANDED, HEADS = tensor(2, 3, 1, 8), tensor(2, 3, 4, 8), tensor(2, 12, 8)


def repeat(sketch: Sketch, keys: Ref, *, copies: bool = False) -> Ref:
    """Each of three keys four times, as four queries share it."""
    expanded = sketch.op("broadcast_in_dim", keys, (2, 3, 4, 8), (0, 1, 2, 3), type_=EXPANDED)
    if copies:
        expanded = sketch.op("shallow_copy", expanded)
    heads = sketch.op("reshape", expanded, (2, 12, 8), type_=HEADS)
    return sketch.op("shallow_copy", heads) if copies else heads


def draw(*, computed: bool, copies: bool = False) -> Graph:
    sketch = Sketch()
    heads = repeat(sketch, sketch.input(KEYS), copies=copies)
    return sketch.graph(sketch.op("tanh", heads) if computed else heads)


def draw_merged(x: TensorType, expanded: TensorType, merged: TensorType, dimensions: tuple[int, ...]) -> Graph:
    """Something is expanded to a type, and merged to another one."""
    sketch = Sketch()
    wide = sketch.op("broadcast_in_dim", sketch.input(x), expanded.shape, dimensions, type_=expanded)
    return sketch.graph(sketch.op("tanh", sketch.op("reshape", wide, merged.shape, type_=merged)))


def draw_between(name: str, *more: object, type_: TensorType = EXPANDED, merged: tuple[int, ...] = (2, 12, 8)) -> Graph:
    """An operation is between the expanded keys and the reshape. Of tensors it also takes whole ones."""
    sketch = Sketch()
    keys, whole = sketch.input(KEYS), sketch.input(EXPANDED)
    wide = sketch.op("broadcast_in_dim", keys, (2, 3, 4, 8), (0, 1, 2, 3), type_=EXPANDED)
    between = sketch.op(
        name, wide, *(whole if each == "whole" else wide if each == "wide" else each for each in more), type_=type_
    )
    return sketch.graph(sketch.op("tanh", sketch.op("reshape", between, merged, type_=tensor(*merged))))


def draw_again(shape: tuple[int, ...]) -> Graph:
    """What was merged is reshaped once more."""
    sketch = Sketch()
    return sketch.graph(
        sketch.op("tanh", sketch.op("reshape", repeat(sketch, sketch.input(KEYS)), shape, type_=tensor(*shape)))
    )


@pytest.mark.parametrize(
    ("graph", "found"),
    [
        (draw(computed=True), {1}),
        (draw(computed=True, copies=True), {2}),
        (draw(computed=False), set()),
        (draw(computed=False, copies=True), set()),
        (draw_merged(tensor(2, 3, 8), tensor(2, 3, 4, 8), tensor(2, 12, 8), (0, 1, 3)), {1}),
        (draw_merged(tensor(2, 3, 8), tensor(2, 3, 1, 8), tensor(6, 8), (0, 1, 3)), set()),
        (draw_merged(tensor(8), tensor(3, 8), tensor(24), (1,)), {1}),
        (draw_merged(tensor(), tensor(3, 8), tensor(24), ()), {1}),
        (draw_between("cos"), {2}),
        (draw_between("mul", "wide"), {2}),
        (draw_between("mul", "whole"), set()),
        (draw_between("transpose", (0, 2, 1, 3), type_=tensor(2, 4, 3, 8)), {2}),
        (draw_between("sum", (3,), type_=tensor(2, 3, 4), merged=(2, 12)), {2}),
        (draw_again((24, 8)), {1}),
        (draw_again((2, 3, 4, 8)), {1}),
    ],
)
def test_repeats_of_which_something_is_computed_are_found(graph, found):
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
    sketch = Sketch()
    merged = shape[0], shape[1] * shape[2], shape[3]
    heads = sketch.op("reshape", sketch.input(tensor(*shape)), merged, type_=tensor(*merged))
    layout = contiguity, (3, 2, 1, 0), ()
    assert find_repeats(sketch.graph(sketch.op("tanh", heads)), [layout]) == found


def test_what_stays_as_it_is_beside_a_merged_dimension_stays_expanded():
    sketch = Sketch()
    wide = sketch.op("broadcast_in_dim", sketch.input(tensor(3, 1)), (5, 3, 4), (1, 2), type_=tensor(5, 3, 4))
    once = sketch.op("reshape", wide, (5, 12), type_=tensor(5, 12))
    twice = sketch.op("reshape", once, (60,), type_=tensor(60))
    assert find_repeats(sketch.graph(sketch.op("tanh", twice)), [None]) == {1, 2}


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


@pytest.mark.parametrize("copies", [False, True])
def test_nvfuser_is_told_to_copy_what_is_repeated(copies):
    calls = re.findall(r"(tv\d+) = fd\.ops\.(\w+)\((tv\d+)", write(draw(computed=True, copies=copies)))
    # nvFuser writes a copy as a cast to the type that it has.
    assert [name for _, name, _ in calls] == ["expand", "reshape", "cast", "tanh"]
    assert all(operand == result for (result, *_), (*_, operand) in itertools.pairwise(calls))


@pytest.mark.parametrize(
    "graph", [draw(computed=False), draw_between("mul", "whole"), draw_merged(KEYS, KEYS, tensor(6, 8), (0, 1, 2, 3))]
)
def test_of_all_else_it_is_told_what_thunder_tells_it(graph):
    from fusioncache.backends.bound_symbols import bind

    found = write(graph)
    with fake_cuda.pretend_gpu():
        bound = bind(graph)
        thunders = nvfuser_executor().create_fd(
            bound.bound_symbols, describe_contiguous(graph), list(bound.inputs), list(bound.outputs)
        )
    assert found == repr(thunders)
