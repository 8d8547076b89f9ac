"""What is a hole and what never is one."""

import math

import pytest
from drawn_regions import draw

from fusioncache.ir import Const, Graph, TensorType
from fusioncache.template.canonical import canonicalize
from fusioncache.template.skeleton import fill, read_holes, skeleton_of


def region(text: str, type_: TensorType | None = None) -> Graph:
    """What is computed of ``x``, in canonical order."""
    return canonicalize(draw(text, x=type_ or (2, 3))).graph


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("sin(x)", (2, 3, 2, 3)),
        ("sum(x, (0,))", (2, 3, 3)),
        ("broadcast_in_dim(x, (5, 2, 3), (1, 2))", (2, 3, 5, 2, 3, 5, 2, 3)),
        ("reshape(x, (3, 2, 1))", (2, 3, 3, 2, 3, 2)),
        ("slice_prim(x, (0, 2), (2, 3), (1, 7))", (2, 3, 2, 2, 3, 2)),
        ("pad(x, 0.5, ((0, 0, 2), (3, -1, 0)))", (2, 3, 3, 4, 5)),
        ("mul(x, full((2, 3), 0.5))", (2, 3, 2, 3, 2, 3, 2, 3)),
        ("mul(x, iota(6, start=2, step=3))", (2, 3, 6, 6, 2, 3)),
    ],
)
def test_sizes_are_holes_in_types_and_in_arguments_that_are_made_of_them(text, values):
    graph = region(text)
    assert sorted(read_holes(graph)) == sorted(values)
    assert fill(skeleton_of(graph), read_holes(graph)) == graph


@pytest.mark.parametrize("text", ["add(x, 0.1)", "mul(x, 0.1)", "sub(x, 0.1)", "div(x, 0.1)", "sub(0.1, x)"])
def test_a_number_that_may_be_a_tensor_is_a_hole(text):
    assert [hole for hole in read_holes(region(text)) if isinstance(hole, Const)] == [Const("float", (0.1).hex())]


NEVER_VARY = {
    "dimension": ("sum(x, (0,))", "sum(x, (1,))"),
    "dimension of 2 and more": ("sum(x, (2,))", "sum(x, (3,))"),
    "dtype": ("convert_element_type(x, 'float16')", "convert_element_type(x, 'bfloat16')"),
    "flag": ("sum(x, (0,), keep=True)", "sum(x, (0,), keep=False)"),
    "integer in arithmetic": ("mul(x, 2)", "mul(x, 3)"),
    "bool in arithmetic": ("mul(x, True)", "mul(x, False)"),
    "2 and 2.0": ("mul(x, 2)", "mul(x, 2.0)"),
    "exponent": ("pow(x, 2.0)", "pow(x, 3.0)"),
    "base": ("pow(2.0, x)", "pow(3.0, x)"),
    "numerator": ("div(2.0, x)", "div(3.0, x)"),
    "bound": ("maximum(x, 2.0)", "maximum(x, 3.0)"),
    "bound of a clamp, compared": ("gt(x, 2.0)", "gt(x, 3.0)"),
    "filled in by a mask": ("where(True, x, 2.0)", "where(True, x, 3.0)"),
    "padded with": ("pad(x, 2.0, ())", "pad(x, 3.0, ())"),
    "filled with": ("mul(x, full((2, 3), 2.0))", "mul(x, full((2, 3), 3.0))"),
    "step": ("slice_prim(x, (0,), (8,), (2,))", "slice_prim(x, (0,), (8,), (3,))"),
    "dilation": ("pad(x, 0.0, ((2, 2, 2),))", "pad(x, 0.0, ((2, 2, 3),))"),
    "cut off": ("pad(x, 0.0, ((-2, 5, 0),))", "pad(x, 0.0, ((-3, 6, 0),))"),
    "of an unknown operation": ("unheard_of(x, 8)", "unheard_of(x, 9)"),
    **{
        f"the number {number}": ("mul(x, 2.0)", f"mul(x, {number})")
        for number in (0.0, -0.0, 1.0, -1.0, math.inf, math.nan)
    },
}


@pytest.mark.parametrize(("one", "other"), NEVER_VARY.values(), ids=NEVER_VARY)
def test_what_never_varies(one, other):
    assert skeleton_of(region(one)) != skeleton_of(region(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("float32", (2, 3), "cpu"), ("float32", (2, 3, 4), "cpu")),
        (("float32", (2, 3), "cpu"), ("float64", (2, 3), "cpu")),
        (("float32", (2, 3), "cpu"), ("float32", (2, 3), "cuda")),
        (("float32", (2, 3), "cpu"), ("float32", (2, 1), "cpu")),
        (("float32", (2, 3), "cpu"), ("float32", (0, 3), "cpu")),
        (("float32", (2, 1), "cpu"), ("float32", (2, 0), "cpu")),
    ],
)
def test_types_that_differ_in_more_than_sizes_of_2_and_more(one, other):
    skeletons = [skeleton_of(region("sin(x)", TensorType(*type_))) for type_ in (one, one, other)]
    assert skeletons[0] == skeletons[1] != skeletons[2]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ((2, 3, 0.5, 1, 3), "in a hole"),
        ((0, 3, 0.5, 2, 3), "in a hole"),
        ((2, 3, math.nan, 2, 3), "in a hole"),
        ((2, 3, 4, 2, 3), "in a hole for a number"),
        ((2, 0.5, 0.5, 2, 3), "in a hole for a size"),
        ((2, 3, 0.5, 2), "values for 5 holes"),
        ((2, 3, 0.5, 2, 3, 2), "values for 5 holes"),
    ],
)
def test_what_cannot_be_in_a_hole_is_refused(values, reason):
    skeleton = skeleton_of(region("mul(x, 0.5)"))
    with pytest.raises(ValueError, match=reason):
        fill(skeleton, [Const("float", value.hex()) if isinstance(value, float) else value for value in values])
