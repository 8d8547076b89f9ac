"""Regions of a trace that are equal are canonicalized once: so everything that is read of one takes part in that."""

import dataclasses

import pytest
from drawn_regions import Sketch
from hypothesis import given
from hypothesis import strategies as st

from fusioncache.backends.bound_symbols import encode_literal
from fusioncache.ir import Const, Graph, NumberType, Op, Ref, TensorType
from fusioncache.template.canonical import canonicalize
from fusioncache.template.text import graph_text

PARTS = (Graph, Op, Const, Ref, TensorType, NumberType)


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_every_field_of_a_part_is_compared(part):
    assert part.__dataclass_params__.eq and part.__dataclass_params__.frozen
    names = [field.name for field in dataclasses.fields(part) if field.compare and field.hash is None]
    assert vars(part)["__slots__"] == (*names, *["_hash"] * (part is Graph))  # there is nothing else


LITERALS = (1, 1.0, True, "1", 0.0, -0.0, 0, False, None, 1j, float("nan"), float("inf"), 1e-5, 1.1e-5)


@given(st.sampled_from(LITERALS), st.sampled_from(LITERALS))
def test_regions_with_literals_that_differ_differ(one, other):
    same = type(one) is type(other) and repr(one) == repr(other)
    drawn = [draw(each) for each in (one, other)]
    assert (drawn[0] == drawn[1]) is same
    assert (graph_text(canonicalize(drawn[0]).graph) == graph_text(canonicalize(drawn[1]).graph)) is same


def draw(literal: object) -> Graph:
    sketch = Sketch()
    return sketch.graph(sketch.op("fmod", sketch.input(), encode_literal(literal)))
