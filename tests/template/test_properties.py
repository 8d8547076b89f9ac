"""Properties of canonical forms, of plans for chains, and of parts, on random graphs and by example."""

import random

import numpy as np
import pytest
from drawn_regions import draw, draw_residual, evaluate, evaluate_folded, evaluate_inlined, scramble
from hypothesis import given, settings
from hypothesis import strategies as st
from random_regions import graphs

from fusioncache.ir import Declined, Graph, TensorType
from fusioncache.template.canonical import canonicalize
from fusioncache.template.key import make_key
from fusioncache.template.plan import FOLD_WIDTHS, Plan, choose_plan, fold, fold_widths
from fusioncache.template.text import read_exactly, write_graph
from fusioncache.template.writer import cut, take


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


def test_a_cut_lies_where_little_passes_between_two_operations():
    graph = draw("exp(sin(sum(tanh(sin(x)), (1,))))", x=(64, 64))
    assert cut(graph) == 3  # behind the sum
    head, tail = take(graph, 0, 3), take(graph, 3, 5)
    assert (head.inputs, head.outputs, tail.inputs, tail.outputs) == ((0,), (3,), (3,), (5,))
    assert tail.graph.inputs == draw("sin(x)", x=(64,)).inputs
    assert cut(draw("x")) is cut(draw("sin(x)")) is None


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


STREAM = draw_residual(1)
EXACT = draw("sum(add(x, a), (1,))")
ROUNDED = draw(
    "sum(add(convert_element_type(x, 'float32'), convert_element_type(a, 'float32')), (1,))",
    **dict.fromkeys("xa", TensorType("bfloat16", (2, 3), "cpu")),
)


@pytest.mark.parametrize(
    ("graph", "arities", "seen", "plan"),
    [
        pytest.param(STREAM, (2,), [(2,)] * 40, Plan.INLINE, id="one short arity in every layer"),
        pytest.param(STREAM, (1,), [(1,), (2,)] * 40, Plan.INLINE, id="two short arities"),
        pytest.param(STREAM, (), [()], Plan.INLINE, id="no chain"),
        pytest.param(STREAM, (1,), [(1,), (2,), (3,)], Plan.FOLD, id="many arities"),
        pytest.param(STREAM, (5,), [(5,)], Plan.FOLD, id="a long chain"),
        pytest.param(STREAM, (1, 9), [(1, 9)], Plan.FOLD, id="a long chain beside a short one"),
        # A reduction's order of adding may change with its kernel, and float32 is to keep every bit.
        pytest.param(EXACT, (3,), [(1,), (2,), (3,)], Plan.INLINE, id="a reduction behind float32 terms"),
        pytest.param(ROUNDED, (3,), [(1,), (2,), (3,)], Plan.FOLD, id="a reduction behind bfloat16 terms"),
    ],
)
def test_chains_are_folded_where_they_are_long_or_of_many_arities(graph, arities, seen, plan):
    assert choose_plan(canonicalize(graph).graph, arities, seen) is plan


def test_folds_add_every_term_once_and_chains_of_up_to_32_terms_use_every_width():
    for arity in range(1, 200):
        assert sum(fold_widths(arity)) == arity and {*fold_widths(arity)} <= {*FOLD_WIDTHS}
    assert {width for arity in range(1, 33) for width in fold_widths(arity)} == set(FOLD_WIDTHS)


def test_every_core_is_the_template_of_a_region_without_adds():
    template = canonicalize(draw_residual(3)).graph
    cores = {fold(template, (arity,)).core for arity in range(1, 30)}
    assert [core.graph for core in cores] == [canonicalize(draw_residual(0)).graph]


def test_sums_of_bfloat16_terms_pass_between_folds_in_float32():
    template = canonicalize(draw_residual(3, dtype="bfloat16")).graph
    first, second = fold(template, (3,)).chains[0].folds
    assert [type_.dtype for type_ in first.graph.inputs] == ["bfloat16"] * 3
    assert [type_.dtype for type_ in second.graph.inputs] == ["float32", "bfloat16"]
    assert first.graph.ops[-1].outputs[0].dtype == second.graph.ops[-1].outputs[0].dtype == "float32"
