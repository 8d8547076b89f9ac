"""What is a hole and what never is one."""

import math
from collections.abc import Callable
from typing import Any

import pytest
from drawn_regions import TYPE, Sketch

from fusioncache.ir import Const, Graph, Ref, TensorType
from fusioncache.template.canonical import canonicalize
from fusioncache.template.skeleton import fill, read_holes, skeleton_of


def tensor(*shape: int, dtype: str = "float32", device: str = "cpu") -> TensorType:
    return TensorType(dtype, shape, device)


def region(draw: Callable[[Sketch, Ref], Ref], type_: TensorType = TYPE) -> Graph:
    """What is drawn from one input, in canonical order."""
    s = Sketch()
    return canonicalize(s.graph(draw(s, s.input(type_)))).graph


def unary(name: str, *before: Any, after: tuple = (), result: TensorType | None = None, **kwargs: Any):
    """Draws one operation, with literals before and after its operand."""
    return lambda s, x: s.op(name, *before, x, *after, type_=result, **kwargs)


@pytest.mark.parametrize(
    ("draw", "values"),
    [
        (unary("sin"), (2, 3, 2, 3)),
        (unary("sum", after=((0,),), result=tensor(3)), (2, 3, 3)),
        (unary("broadcast_in_dim", after=((5, 2, 3), (1, 2)), result=tensor(5, 2, 3)), (2, 3, 5, 2, 3, 5, 2, 3)),
        (unary("reshape", after=((3, 2, 1),), result=tensor(3, 2, 1)), (2, 3, 3, 2, 3, 2)),
        (unary("slice_prim", after=((0, 2), (2, 3), (1, 7)), result=tensor(2, 1)), (2, 3, 2, 2, 3, 2)),
        (unary("pad", after=(0.5, ((0, 0, 2), (3, -1, 0))), result=tensor(4, 5)), (2, 3, 3, 4, 5)),
        (lambda s, x: s.op("mul", x, s.op("full", (2, 3), 0.5)), (2, 3, 2, 3, 2, 3, 2, 3)),
        (lambda s, x: s.op("mul", x, s.op("iota", 6, start=2, step=3, type_=tensor(6))), (2, 3, 6, 6, 2, 3)),
    ],
)
def test_sizes_are_holes_in_types_and_in_arguments_that_are_made_of_them(draw, values):
    graph = region(draw)
    assert sorted(read_holes(graph)) == sorted(values)
    assert fill(skeleton_of(graph), read_holes(graph)) == graph


NUMBER = 0.1


@pytest.mark.parametrize(
    "draw", [*(unary(name, after=(NUMBER,)) for name in ("add", "mul", "sub", "div")), unary("sub", NUMBER)]
)
def test_a_number_that_may_be_a_tensor_is_a_hole(draw):
    holes = read_holes(region(draw))
    assert [hole for hole in holes if isinstance(hole, Const)] == [Const("float", NUMBER.hex())]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(unary("sum", after=((0,),)), unary("sum", after=((1,),)), id="dimension"),
        pytest.param(unary("sum", after=((2,),)), unary("sum", after=((3,),)), id="dimension of 2 and more"),
        pytest.param(lambda s, x: s.to(x, "float16"), lambda s, x: s.to(x, "bfloat16"), id="dtype"),
        pytest.param(unary("sum", keep=True), unary("sum", keep=False), id="flag"),
        pytest.param(unary("mul", after=(2,)), unary("mul", after=(3,)), id="integer in arithmetic"),
        pytest.param(unary("mul", after=(True,)), unary("mul", after=(False,)), id="bool in arithmetic"),
        pytest.param(unary("mul", after=(2,)), unary("mul", after=(2.0,)), id="2 and 2.0"),
        pytest.param(unary("pow", after=(2.0,)), unary("pow", after=(3.0,)), id="exponent"),
        pytest.param(unary("pow", 2.0), unary("pow", 3.0), id="base"),
        pytest.param(unary("div", 2.0), unary("div", 3.0), id="numerator"),
        pytest.param(unary("maximum", after=(2.0,)), unary("maximum", after=(3.0,)), id="bound"),
        pytest.param(unary("gt", after=(2.0,)), unary("gt", after=(3.0,)), id="bound of a clamp, compared"),
        pytest.param(unary("where", True, after=(2.0,)), unary("where", True, after=(3.0,)), id="filled in by a mask"),
        pytest.param(unary("pad", after=(2.0, ())), unary("pad", after=(3.0, ())), id="padded with"),
        pytest.param(
            lambda s, x: s.op("mul", x, s.op("full", (2, 3), 2.0)),
            lambda s, x: s.op("mul", x, s.op("full", (2, 3), 3.0)),
            id="filled with",
        ),
        pytest.param(
            unary("slice_prim", after=((0,), (8,), (2,))), unary("slice_prim", after=((0,), (8,), (3,))), id="step"
        ),
        pytest.param(unary("pad", after=(0.0, ((2, 2, 2),))), unary("pad", after=(0.0, ((2, 2, 3),))), id="dilation"),
        pytest.param(unary("pad", after=(0.0, ((-2, 2, 0),))), unary("pad", after=(0.0, ((-3, 2, 0),))), id="cut off"),
        pytest.param(unary("unheard_of", after=(8,)), unary("unheard_of", after=(9,)), id="of an unknown operation"),
        *(
            pytest.param(unary("mul", after=(2.0,)), unary("mul", after=(number,)), id=f"the number {number}")
            for number in (0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan)
        ),
    ],
)
def test_what_never_varies(one, other):
    assert skeleton_of(region(one)) != skeleton_of(region(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (tensor(2, 3), tensor(2, 3, 4)),
        (tensor(2, 3), tensor(2, 3, dtype="float64")),
        (tensor(2, 3), tensor(2, 3, device="cuda")),
        (tensor(2, 3), tensor(2, 1)),
        (tensor(2, 3), tensor(0, 3)),
        (tensor(2, 1), tensor(2, 0)),
    ],
)
def test_types_that_differ_in_more_than_sizes_of_2_and_more(one, other):
    sine = unary("sin")
    assert skeleton_of(region(sine, one)) != skeleton_of(region(sine, other))
    assert skeleton_of(region(sine, one)) == skeleton_of(region(sine, one))


def test_what_cannot_be_in_a_hole_is_refused():
    graph = region(unary("mul", after=(0.5,)))
    skeleton, number, nan = skeleton_of(graph), read_holes(graph)[2], Const("float", "nan")
    for values in ((2, 3, number, 1, 3), (0, 3, number, 2, 3), (2, 3, nan, 2, 3)):
        with pytest.raises(ValueError, match="in a hole"):
            fill(skeleton, values)
    for values, kind in (((2, 3, 4, 2, 3), "number"), ((2, number, number, 2, 3), "size")):
        with pytest.raises(ValueError, match=f"in a hole for a {kind}"):
            fill(skeleton, values)
    for values in ((2, 3, number, 2), (2, 3, number, 2, 3, 2)):
        with pytest.raises(ValueError, match="values for 5 holes"):
            fill(skeleton, values)
