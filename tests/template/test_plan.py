"""How residual chains are summed."""

from drawn_regions import Sketch, draw_residual

from fusioncache.ir import TensorType
from fusioncache.template.canonical import canonicalize
from fusioncache.template.plan import FOLD_WIDTHS, Plan, choose_plan, fold, fold_widths, inline
from fusioncache.template.text import graph_text

STREAM = canonicalize(draw_residual(1)).graph


def summed(dtype: str):
    """A stream with a reduction behind it."""
    s = Sketch()
    x, a = (s.input(TensorType(dtype, (2, 3), "cpu")) for _ in range(2))
    total = s.op("add", *(value if dtype == "float32" else s.to(value, "float32") for value in (x, a)))
    return canonicalize(s.graph(s.op("sum", total, (1,), type_=TensorType("float32", (2,), "cpu")))).graph


def test_the_same_few_short_arities_in_every_layer_are_inlined():
    assert choose_plan(STREAM, (2,), [(2,)] * 40) is Plan.INLINE
    assert choose_plan(STREAM, (1,), [(1,), (2,)] * 40) is Plan.INLINE
    assert choose_plan(STREAM, (), [()]) is Plan.INLINE


def test_many_arities_and_long_chains_are_folded():
    assert choose_plan(STREAM, (1,), [(1,), (2,), (3,)]) is Plan.FOLD
    assert choose_plan(STREAM, (5,), [(5,)]) is Plan.FOLD
    assert choose_plan(STREAM, (1, 9), [(1, 9)]) is Plan.FOLD


def test_a_reduction_behind_float32_terms_is_never_folded():
    """A reduction's order of adding may change with its kernel, and float32 is to keep every bit."""
    many = [(1,), (2,), (3,)]
    assert choose_plan(summed("float32"), (3,), many) is Plan.INLINE
    assert choose_plan(summed("bfloat16"), (3,), many) is Plan.FOLD


def test_folds_add_every_term_once_and_chains_of_up_to_32_terms_use_every_width():
    for arity in range(1, 200):
        widths = fold_widths(arity)
        assert sum(widths) == arity
        assert set(widths) <= set(FOLD_WIDTHS)
    assert {width for arity in range(1, 33) for width in fold_widths(arity)} == set(FOLD_WIDTHS)


def test_every_core_is_the_template_of_a_region_without_adds():
    template = canonicalize(draw_residual(3)).graph
    assert fold(template, (3,)).core.graph == canonicalize(draw_residual(0)).graph
    assert len({fold(template, (arity,)).core for arity in range(1, 30)}) == 1


def test_inlining_gives_the_region_back():
    template = canonicalize(draw_residual(4, dtype="bfloat16")).graph
    assert inline(template, (4,)) != inline(template, (3,))
    assert canonicalize(inline(template, (4,))).graph == template


def test_sums_of_bfloat16_terms_pass_between_folds_in_float32():
    template = canonicalize(draw_residual(3, dtype="bfloat16")).graph
    first, second = fold(template, (3,)).chains[0].folds
    assert graph_text(first.graph).splitlines()[-1] == "output %7"
    assert [type_.dtype for type_ in first.graph.inputs] == ["bfloat16"] * 3
    assert [type_.dtype for type_ in second.graph.inputs] == ["float32", "bfloat16"]
    assert first.graph.ops[-1].outputs[0].dtype == second.graph.ops[-1].outputs[0].dtype == "float32"
