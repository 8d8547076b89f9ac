"""Properties of the canonical form on random graphs."""

from __future__ import annotations

import random

import numpy as np
from drawn_regions import Sketch, evaluate, evaluate_folded, evaluate_inlined, scrambled
from hypothesis import given, settings
from hypothesis import strategies as st

from fusioncache.ir import Bypass, Graph, TensorType
from fusioncache.template.canonical import canonicalize
from fusioncache.template.key import make_key

UNARY, BINARY = ("tanh", "neg", "sin", "abs"), ("add", "add", "mul", "sub", "maximum")
CONSTANTS = (0.0, -0.0, 1.0, 0.1, -3.5)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Small graphs with much sharing, chains of adds, conversions and constants."""
    sketch = Sketch()
    dtypes = st.sampled_from(["float32", "float32", "float16"])
    inputs = [sketch.input(TensorType(draw(dtypes), (2, 3), "cpu")) for _ in range(draw(st.integers(1, 6)))]
    values = [sketch.to(x, "float32") if sketch.types[x.index].dtype == "float16" else x for x in inputs]
    computed = []
    for _ in range(draw(st.integers(1, 14))):
        kind = draw(st.sampled_from(["unary", "binary", "binary", "constant", "chain", "shared"]))
        pick = st.sampled_from(values[-6:] + values[:6])
        if kind == "unary":
            value = sketch.op(draw(st.sampled_from(UNARY)), draw(pick))
        elif kind == "constant":
            value = sketch.op("mul", draw(pick), draw(st.sampled_from(CONSTANTS)))
        elif kind == "binary":
            value = sketch.op(draw(st.sampled_from(BINARY)), draw(pick), draw(pick))
        elif kind == "shared":
            one, value = draw(pick), draw(pick)
            for _ in range(draw(st.integers(2, 30))):  # every value is used twice: as many ways up as Fibonacci numbers
                one, value = value, sketch.op("add", one, value)
        else:
            value = draw(pick)
            for term in draw(st.lists(st.sampled_from(values[: len(inputs)]), min_size=1, max_size=4)):
                value = sketch.op("add", value, term)
        values.append(value)
        computed.append(value)
    return sketch.graph(*draw(st.lists(st.sampled_from(computed), min_size=1, max_size=3)))


def numbers(graph: Graph, seed: int) -> list[np.ndarray]:
    chance = np.random.default_rng(seed)
    return [chance.standard_normal(type_.shape).astype(type_.dtype) for type_ in graph.inputs]


def same_bits(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    # Which NaN comes of two NaNs depends on their order; every other bit counts.
    return all(
        a.dtype == b.dtype
        and (np.isnan(a) == np.isnan(b)).all()
        and a[~np.isnan(a)].tobytes() == b[~np.isnan(b)].tobytes()
        for a, b in zip(one, other, strict=True)
    )


@settings(deadline=None, max_examples=300)
@given(graphs())
def test_canonicalizing_is_idempotent(graph):
    once = canonicalize(graph).graph
    assert canonicalize(once).graph == once


@settings(deadline=None, max_examples=300)
@given(graphs(), st.integers())
def test_the_way_a_region_is_written_does_not_matter(graph, seed):
    try:
        expected = canonicalize(graph)
    except Bypass:
        return
    found = canonicalize(scrambled(graph, random.Random(seed)))
    assert make_key(found.graph, {}) == make_key(expected.graph, {})
    assert found.binding.arities == expected.binding.arities


@settings(deadline=None, max_examples=300)
@given(graphs(), st.integers(0, 2**32))
def test_a_template_computes_what_its_region_does_bit_for_bit(graph, seed):
    inputs = numbers(graph, seed)
    canonical = canonicalize(graph)
    expected = evaluate(graph, inputs)
    assert same_bits(evaluate_inlined(canonical, inputs), expected)
    assert same_bits(evaluate_folded(canonical, inputs), expected)
