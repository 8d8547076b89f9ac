"""Regions as JSON: what was written comes back, and nothing else passes for it."""

from dataclasses import replace

import pytest
from drawn_regions import Sketch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_regions import graphs
from store_processes import make_region

from fusioncache.ir import Instance, NumberType, Ref, TensorType
from fusioncache.ir.codec import decode, encode


@given(graph=graphs())
@settings(max_examples=60)
def test_a_region_comes_back_as_it_was(graph):
    instance = Instance(graph, tuple(reversed(range(len(graph.inputs)))), tuple(range(len(graph.outputs))))
    assert decode(encode(instance)) == instance


def test_every_kind_of_type_and_argument_comes_back():
    s = Sketch()
    x = s.input(TensorType("bfloat16", (2, Ref(2)), "cuda"))
    s.input(NumberType("float"))
    graph = s.graph(s.op("add", x, x))
    graph = replace(graph, sizes=1, ops=tuple(replace(op, args=(Ref(0), Ref(1), (Ref(2),))) for op in graph.ops))
    graph = replace(graph, outputs=(3,))
    instance = Instance(graph, (1, 0), (0,))
    assert decode(encode(instance)) == instance


@given(content=st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
@settings(max_examples=100)
def test_no_other_bytes_pass_for_a_region(content):
    with pytest.raises(ValueError):
        decode(content)


@given(data=st.data())
@settings(max_examples=100)
def test_a_region_with_a_byte_changed_is_a_sound_one_or_refused(data):
    content = bytearray(encode(Instance(make_region(), (0, 1), (0, 1))))
    content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(32, 126))
    try:
        instance = decode(bytes(content))
    except ValueError:
        return
    known = instance.region.first_result + sum(len(op.outputs) for op in instance.region.ops)
    assert all(value < known for value in instance.region.outputs)
