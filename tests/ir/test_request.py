"""Requests as JSON: what was written comes back, and nothing else passes for it."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_processes import make_region

from fusioncache.ir import Graph, NumberType, Ref, TensorType
from fusioncache.ir.template import Request, decode_request, encode_request


def _request() -> Request:
    return Request(
        make_region(),
        (((2, 3), (3, 1)),) * 2,
        "nvfuser",
        {"enable": ("a", "b"), "mode": None, "flag": True},
        {"torch.flag": False},
    )


def test_a_request_comes_back_as_it_was():
    assert decode_request(encode_request(_request())) == _request()
    graph = Graph((NumberType("int"), TensorType("float32", (Ref(0),), "cpu")), (), (1,))
    request = Request(graph, (None, ((4,), (1,))), "inductor", {})
    assert decode_request(encode_request(request)) == request


@given(data=st.data())
@settings(max_examples=100)
def test_a_request_with_a_byte_changed_is_a_sound_one_or_refused(data):
    content = bytearray(encode_request(_request()))
    content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(32, 126))
    try:
        request = decode_request(bytes(content))
    except ValueError:
        return
    for type_, layout in zip(request.graph.inputs, request.layouts, strict=True):
        assert isinstance(type_, TensorType) and layout is not None
        assert len(layout[0]) == len(layout[1]) == len(type_.shape)


def test_a_request_written_before_there_were_settings_has_none():
    body = json.loads(encode_request(_request()))
    del body["settings"]
    assert decode_request(json.dumps(body)) == replace(_request(), settings={})


@pytest.mark.parametrize(
    "layouts",
    [(), (((2, 3), (3, 1)),), (((2, 3), (3, 1)), None), (((2, 3), (3, 1)), ((2, 4), (4, 1))), (((2, 3), (3,)),) * 2],
)
def test_a_request_for_other_arguments_is_refused(layouts):
    with pytest.raises(ValueError):
        decode_request(encode_request(Request(make_region(), layouts, "eager", {})))
