"""How residual chains are summed."""

import pytest
from drawn_regions import draw, draw_residual

from fusioncache.ir import TensorType
from fusioncache.template.canonical import canonicalize
from fusioncache.template.plan import FOLD_WIDTHS, Plan, choose_plan, fold, fold_widths

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
        assert sum(fold_widths(arity)) == arity
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
