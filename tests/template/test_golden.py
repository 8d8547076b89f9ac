"""Templates as text, in full."""

import pytest
from drawn_regions import Sketch, draw_residual

from fusioncache.ir import TensorType
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


def rms_norm():
    s = Sketch()
    x, branch, weight = s.input(), s.input(), s.input(TensorType("float32", (3,), "cpu"))
    total = s.op("add", x, branch)
    mean = s.op("sum", s.op("mul", total, total), (1,), type_=TensorType("float32", (2,), "cpu"))
    scale = s.op("rsqrt", s.op("add", s.op("mul", mean, 1 / 3), 1e-5))
    spread = s.op("broadcast_in_dim", scale, (2, 3), (0,), type_=TensorType("float32", (2, 3), "cpu"))
    weights = s.op("broadcast_in_dim", weight, (2, 3), (1,), type_=TensorType("float32", (2, 3), "cpu"))
    return s.graph(s.op("mul", s.op("mul", total, spread), weights), total)


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
    assert text(rms_norm()) == expected


def test_constants_and_attributes_stand_in_ingredients_of_their_own():
    key = make_key(canonicalize(rms_norm()).graph, {})
    parts = {part.name: part.text for part in key.ingredients}
    assert parts["constants"] == "float 0x1.5555555555555p-2\nfloat 0x1.4f8b588e368f1p-17"
    assert parts["attributes"].splitlines()[:3] == ["dtype 'float32'", "int '2'", "int '3'"]
    assert "constant0" in parts["ops"] and "0.333" not in parts["ops"]


def test_names_say_what_a_template_does_and_which_one_it_is():
    graph = canonicalize(rms_norm()).graph
    key = make_key(graph, {})
    assert template_name(graph, key) == f"residual_sum_rsqrt_{key.digest[:8]}"
    simple = canonicalize(draw_residual(1)).graph
    assert template_name(simple, make_key(simple, {})).startswith("residual_tanh_")
