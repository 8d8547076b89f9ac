"""A graph that is cut in two computes the same, part by part."""

import numpy as np
import pytest
from drawn_regions import draw, evaluate
from hypothesis import given, settings
from random_regions import graphs

from fusioncache.template.writer import cut, take


def test_a_cut_lies_where_little_passes():
    graph = draw("exp(sin(sum(tanh(sin(x)), (1,))))", x=(64, 64))
    assert cut(graph) == 3  # behind the sum
    head, tail = take(graph, 0, 3), take(graph, 3, 5)
    assert (head.inputs, head.outputs, tail.inputs, tail.outputs) == ((0,), (3,), (3,), (5,))
    assert tail.graph.inputs == draw("sin(x)", x=(64,)).inputs


@pytest.mark.parametrize("output", ["x", "sin(x)"])
def test_what_has_one_operation_is_not_cut(output):
    assert cut(draw(output)) is None


@given(graphs())
@settings(max_examples=30)
def test_parts_compute_what_the_whole_computes(graph):
    place = cut(graph)
    if place is None:
        return
    chance = np.random.default_rng(0)
    inputs = [chance.random(type_.shape).astype("float32") for type_ in graph.inputs]
    values = dict(enumerate(inputs))
    for part in (take(graph, 0, place), take(graph, place, len(graph.ops))):
        results = evaluate(part.graph, [values[number] for number in part.inputs])
        values.update(zip(part.outputs, results, strict=True))
    for number, expected in zip(graph.outputs, evaluate(graph, inputs), strict=True):
        np.testing.assert_array_equal(values[number], expected)
