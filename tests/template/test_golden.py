"""Templates as text, in full."""

import pytest
from drawn_regions import draw, draw_residual

from fusioncache.template.canonical import canonicalize
from fusioncache.template.key import make_key, template_name
from fusioncache.template.text import graph_text


def text(graph) -> str:
    return graph_text(canonicalize(graph).graph)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("adds", [1, 3, 30])
def test_a_residual_stream(dtype, adds):
    expected = f"""\
input %0: {dtype}[2, 3] cpu
%1: float32[2, 3] cpu = residual(%0, dtype:{dtype})
%2: float32[2, 3] cpu = prims.tanh(%1)
output %2
"""
    assert text(draw_residual(adds, dtype=dtype)) == expected


NORM = draw(
    "mul(mul(add(x, branch), broadcast_in_dim("
    f"rsqrt(add(mul(sum(mul(add(x, branch), add(x, branch)), (1,)), {1 / 3}), 1e-5)), (2, 3), (0,))), "
    "broadcast_in_dim(weight, (2, 3), (1,)))",
    "add(x, branch)",
    weight=(3,),
)


def test_a_norm_after_a_residual_add():
    expected = """\
input %0: float32[2, 3] cpu
input %1: float32[3] cpu
%2: float32[2, 3] cpu = residual(%0, dtype:float32)
%3: float32[2, 3] cpu = prims.broadcast_in_dim(%1, (2, 3), (1,))
%4: float32[2, 3] cpu = prims.mul(%2, %2)
%5: float32[2] cpu = prims.sum(%4, (1,))
%6: float32[2] cpu = prims.mul(%5, 0.3333333333333333)
%7: float32[2] cpu = prims.add(%6, 1e-05)
%8: float32[2] cpu = prims.rsqrt(%7)
%9: float32[2, 3] cpu = prims.broadcast_in_dim(%8, (2, 3), (0,))
%10: float32[2, 3] cpu = prims.mul(%2, %9)
%11: float32[2, 3] cpu = prims.mul(%3, %10)
output %2
output %11
"""
    assert text(NORM) == expected


def test_constants_and_attributes_stand_in_ingredients_of_their_own():
    parts = make_key(canonicalize(NORM).graph, {}).texts
    assert parts["constants"] == "float 0x1.5555555555555p-2\nfloat 0x1.4f8b588e368f1p-17"
    assert parts["attributes"].splitlines()[:3] == ["dtype 'float32'", "int '2'", "int '3'"]
    assert "constant0" in parts["ops"] and "0.333" not in parts["ops"]


@pytest.mark.parametrize(("region", "name"), [(NORM, "residual_sum_rsqrt"), (draw_residual(1), "residual_tanh")])
def test_names_say_what_a_template_does_and_which_one_it_is(region, name):
    graph = canonicalize(region).graph
    key = make_key(graph, {})
    assert template_name(graph, key) == f"{name}_{key.digest[:8]}"
