"""A graph that is cut in two computes the same, part by part."""

import numpy as np
import pytest
from drawn_regions import Sketch, evaluate
from hypothesis import given, settings
from random_regions import graphs

from fusioncache.ir import TensorType
from fusioncache.template.writer import cut, take


def run_parts(graph, place, inputs):
    values = dict(enumerate(inputs))
    for start, stop in ((0, place), (place, len(graph.ops))):
        part = take(graph, start, stop)
        results = evaluate(part.graph, [values[number] for number in part.inputs])
        values.update(zip(part.outputs, results, strict=True))
    return [values[number] for number in graph.outputs]


def test_a_cut_lies_where_little_passes():
    s = Sketch()
    wide = TensorType("float32", (64, 64), "cpu")
    x = s.input(wide)
    a = s.op("tanh", s.op("sin", x))
    row = s.op("sum", a, (1,), type_=TensorType("float32", (64,), "cpu"))
    graph = s.graph(s.op("exp", s.op("sin", row)))
    assert cut(graph) == 3  # behind the sum
    head, tail = take(graph, 0, 3), take(graph, 3, 5)
    assert (head.inputs, head.outputs, tail.inputs, tail.outputs) == ((0,), (3,), (3,), (5,))
    assert tail.graph.inputs == (TensorType("float32", (64,), "cpu"),)


def test_what_an_early_part_returns_and_a_late_one_uses_leaves_it():
    s = Sketch()
    x, y = s.input(), s.input()
    a = s.op("sin", x)
    b = s.op("add", a, y)
    graph = s.graph(b, a, s.op("mul", b, a))
    head = take(graph, 0, 2)
    assert (head.inputs, head.outputs) == ((0, 1), (2, 3))
    assert take(graph, 2, 3).inputs == (2, 3)


@pytest.mark.parametrize("ops", [0, 1])
def test_what_has_one_operation_is_not_cut(ops):
    s = Sketch()
    x = s.input()
    assert cut(s.graph(s.op("sin", x) if ops else x)) is None


@given(graphs())
@settings(max_examples=30)
def test_parts_compute_what_the_whole_computes(graph):
    place = cut(graph)
    if place is None:
        return
    rng = np.random.default_rng(0)
    inputs = [rng.random(type_.shape).astype("float32") for type_ in graph.inputs]
    for one, other in zip(run_parts(graph, place, inputs), evaluate(graph, inputs), strict=True):
        np.testing.assert_array_equal(one, other)
