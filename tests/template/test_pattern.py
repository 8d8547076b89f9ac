"""Patterns read what blanking and comparing would: nothing that a skeleton says goes by unseen."""

import random
from dataclasses import replace
from math import prod

import pytest
from drawn_regions import Sketch, scramble
from hypothesis import given, settings
from hypothesis import strategies as st
from sized_regions import draw_region, recipes, settings_of_sizes

from fusioncache.ir import Const, Graph, Instance, NumberType, Op, Ref, TensorType
from fusioncache.template.canonical import canonicalize
from fusioncache.template.general_region import in_order_of_template
from fusioncache.template.holes import read_holes
from fusioncache.template.instance import instance_of
from fusioncache.template.pattern import Pattern, outline_of, pattern_of
from fusioncache.template.skeleton import skeleton_of


def instance(recipe, setting, seed: int) -> Instance:
    region = scramble(draw_region(recipe, setting), random.Random(seed))
    return instance_of(region, canonicalize(region).binding)


def count(graph: Graph) -> int:
    types = [*graph.inputs, *(type_ for op in graph.ops for type_ in op.outputs)]
    return max(prod(type_.shape) for type_ in types)


@settings(max_examples=100)
@given(recipes(), settings_of_sizes(), settings_of_sizes(), st.integers(0, 2), st.integers(0, 2))
def test_a_pattern_reads_what_the_holes_of_a_skeleton_hold(recipe, known, asked, one, other):
    first, second = instance(recipe, known, one), instance(recipe, asked, other)
    ordered = in_order_of_template(second)
    is_alike = skeleton_of(in_order_of_template(first)) == skeleton_of(ordered)
    read = pattern_of(first).match(second.region)
    if (first.inputs, first.outputs) == (second.inputs, second.outputs):
        assert read == (read_holes(ordered) if is_alike else None)
        assert not is_alike or outline_of(first.region) == outline_of(second.region)
    if read is not None:
        assert pattern_of(first).count_elements(read) == count(second.region)


def draw(
    length: int = 7,
    *,
    width: int = 5,
    number: object = 0.5,
    dims: object = (0,),
    name: str = "sin",
    dtype: str = "float32",
    device: str = "cpu",
    **kwargs: object,
) -> Graph:
    s = Sketch()
    type_ = TensorType(dtype, (length, width), device)
    x, y = s.input(type_), s.input(type_)
    scaled = s.op("mul", s.op(name, x, **kwargs), number)
    flat = s.op("reshape", scaled, (length * width,), type_=TensorType(dtype, (length * width,), device))
    summed = s.op("sum", s.op("sub", scaled, y), dims, type_=TensorType(dtype, (width,), device))
    return s.graph(flat, summed)


KNOWN = draw(16, width=32, number=0.25)
GRAPH = draw()
(FLAT,) = (op for op in GRAPH.ops if op.name == "prims.reshape")


def with_op(new: Op, old: Op = FLAT) -> Graph:
    return replace(GRAPH, ops=tuple(new if op is old else op for op in GRAPH.ops))


def test_what_is_in_holes_is_read():
    assert Pattern(KNOWN).match(GRAPH) == read_holes(GRAPH)
    s = Sketch()
    short, long = (s.input(TensorType("float32", (size,), "cpu")) for size in (3, 40))
    graph = s.graph(s.op("sin", short), s.op("sin", long))
    assert (Pattern(graph).match(graph), Pattern(graph, (1, 0)).match(graph)) == ((3, 40, 3, 40), (40, 3, 3, 40))


DIFFERENT = {
    "size 1": draw(1),
    "size 0": draw(0),
    "size 1 in an argument alone": with_op(replace(FLAT, args=(FLAT.args[0], (Const("int", "1"),)))),
    "negative size in an argument": with_op(replace(FLAT, args=(FLAT.args[0], (Const("int", "-1"),)))),
    "flag for a size": with_op(replace(FLAT, args=(FLAT.args[0], (Const("bool", "True"),)))),
    "value for a size": with_op(replace(FLAT, args=(FLAT.args[0], (Ref(0),)))),
    "another size": with_op(replace(FLAT, args=(FLAT.args[0], (Const("int", "7"), Const("int", "5"))))),
    "number for a tuple": with_op(replace(FLAT, args=(FLAT.args[0], Const("int", "35")))),
    "tuple for a number": draw(number=(Const("float", "0x1p-1"),)),
    "number 1": draw(number=1.0),
    "number 0": draw(number=0.0),
    "number -0": draw(number=-0.0),
    "number -1": draw(number=-1.0),
    "infinite number": draw(number=float("inf")),
    "no number": draw(number=float("nan")),
    "whole number": draw(number=2),
    "value for a number": draw(number=Ref(1)),
    "dimension": draw(dims=(1,)),
    "flag for a dimension": draw(dims=(False,)),
    "operation": draw(name="cos"),
    "named argument": draw(what=2),
    "dtype": draw(dtype="float64"),
    "device": draw(device="cuda"),
    "dtype of a result": with_op(replace(FLAT, outputs=(TensorType("float64", (35,), "cpu"),))),
    "dimensions of a result": with_op(replace(FLAT, outputs=(TensorType("float32", (7, 5), "cpu"),))),
    "symbolic size": with_op(replace(FLAT, outputs=(TensorType("float32", (Ref(0),), "cpu"),))),
    "number among the results": with_op(replace(FLAT, outputs=(NumberType("float"),))),
    "dropped result": with_op(replace(FLAT, outputs=(None,))),
    "further result": with_op(replace(FLAT, outputs=(*FLAT.outputs, *FLAT.outputs))),
    "further argument": with_op(replace(FLAT, args=(*FLAT.args, Ref(0)))),
    "operand": with_op(replace(FLAT, args=(Ref(0), *FLAT.args[1:]))),
    "operation less": replace(GRAPH, ops=GRAPH.ops[:-1]),
    "outputs": replace(GRAPH, outputs=GRAPH.outputs[::-1]),
    "inputs": replace(GRAPH, inputs=GRAPH.inputs[:1]),
    "number among the inputs": replace(GRAPH, inputs=(GRAPH.inputs[0], NumberType("float"))),
    "symbolic sizes": replace(GRAPH, sizes=1),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_nothing_else_may_differ(what):
    assert skeleton_of(DIFFERENT[what]) != skeleton_of(KNOWN)
    assert Pattern(KNOWN).match(DIFFERENT[what]) is None
