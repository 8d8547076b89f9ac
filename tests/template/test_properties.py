"""Properties of the canonical form on random graphs."""

import random

import numpy as np
from drawn_regions import evaluate, evaluate_folded, evaluate_inlined, scramble
from hypothesis import given, settings
from hypothesis import strategies as st
from random_regions import graphs

from fusioncache.ir import Declined, Graph
from fusioncache.template.canonical import canonicalize
from fusioncache.template.key import make_key
from fusioncache.template.text import read_exactly, write_graph


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


@settings(max_examples=100)
@given(graphs())
def test_a_canonical_graph_is_its_own_canonical_form_and_is_read_again_as_it_was_written(graph):
    once = canonicalize(graph).graph
    assert canonicalize(once).graph == once
    assert read_exactly(write_graph(graph)) == graph
    assert read_exactly(write_graph(once)) == once


@settings(max_examples=100)
@given(graphs(), st.integers())
def test_the_way_a_region_is_written_does_not_matter(graph, seed):
    try:
        expected = canonicalize(graph)
    except Declined:
        return
    found = canonicalize(scramble(graph, random.Random(seed)))
    assert make_key(found.graph, {}) == make_key(expected.graph, {})
    assert found.binding.arities == expected.binding.arities


@settings(max_examples=100)
@given(graphs(), st.integers(0, 2**32))
def test_a_template_computes_what_its_region_does_bit_for_bit(graph, seed):
    inputs = numbers(graph, seed)
    canonical = canonicalize(graph)
    expected = evaluate(graph, inputs)
    assert same_bits(evaluate_inlined(canonical, inputs), expected)
    assert same_bits(evaluate_folded(canonical, inputs), expected)
