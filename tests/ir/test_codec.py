"""Values as JSON, and texts of keys: decoding returns what was encoded, and refuses everything else."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Annotated, ClassVar, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_regions import graphs
from store_processes import make_region

from fusioncache.ir import Graph, Instance, NumberType, Op, Ref, TensorType, codec, keys
from fusioncache.ir.codec import LARGEST_INTEGER
from fusioncache.ir.template import Request, decode_region, decode_request, encode_region, encode_request


class Plan(Enum):
    FIRST = "first"
    SECOND = "second"


@dataclass(frozen=True)
class Leaf:
    number: int


@dataclass(frozen=True)
class Branch:
    children: tuple["Tree", ...]


type Tree = Leaf | Branch


@dataclass(frozen=True)
class Everything:
    name: Annotated[str, re.compile("[a-z]+"), str.islower]
    plan: Plan
    word: Literal["on", "off"]
    seconds: float
    offset: Annotated[int, range(-5, 6)]
    content: bytes
    pair: tuple[int, str]
    tree: Tree
    either: int | float | bool | str | tuple[str, ...] | None
    options: Mapping[str, int] = field(default_factory=dict)
    sizes: int = 0
    flag: bool = False

    def validate(self):
        if self.sizes > 100:
            raise ValueError("too many sizes")


TREE = Branch((Leaf(1), Branch(()), Branch((Leaf(2),))))
VALUE = Everything("abc", Plan.SECOND, "on", 0.5, -5, b"\0\xff", (1, "x"), TREE, None, {"b": 1, "a": 2}, 3)


@pytest.mark.parametrize("either", [None, 5, 0.5, True, "x", (), ("x", "y")])
def test_every_type_comes_back(either):
    value = replace(VALUE, either=either)
    found = codec.decode(Everything, codec.encode(value, format=2), "everything", format=2)
    assert found == value and type(found.either) is type(either)


def test_equal_values_have_equal_bytes_without_defaults():
    assert codec.encode(replace(VALUE, options={"a": 2, "b": 1})) == codec.encode(VALUE)
    content = codec.encode(replace(VALUE, options={}, sizes=0))
    assert json.loads(content).keys() == {*VALUE.__dict__} - {"options", "sizes", "flag"}
    assert codec.decode(Everything, content, "everything") == replace(VALUE, options={}, sizes=0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "ABC"}, "everything.name is 'ABC', not a text like [a-z]+"),
        ({"name": "abc\n"}, "not a text like [a-z]+"),
        ({"name": "\ud800"}, "everything.name is "),
        ({"plan": "third"}, "everything.plan is 'third', not one of first, second"),
        ({"plan": 1}, "everything.plan is 1, not a text"),
        ({"word": "maybe"}, "everything.word is 'maybe', not one of on, off"),
        ({"seconds": "1"}, "not a finite number"),
        ({"offset": 6}, "everything.offset is 6, not an integer from -5 to 5"),
        ({"seconds": True}, "everything.seconds is True, not a finite number"),
        ({"seconds": 10**400}, "not an integer from"),
        ({"flag": 1}, "everything.flag is 1, not true or false"),
        ({"sizes": LARGEST_INTEGER + 1}, f"not an integer from 0 to {LARGEST_INTEGER}"),
        ({"sizes": -1}, f"everything.sizes is -1, not an integer from 0 to {LARGEST_INTEGER}"),
        ({"sizes": 1.0}, "everything.sizes is 1.0, not an integer"),
        ({"sizes": True}, "everything.sizes is True, not an integer"),
        ({"sizes": 101}, "everything too many sizes"),
        ({"content": "0"}, "not a text like"),
        ({"pair": [1]}, "everything.pair is [1], not a list of 2"),
        ({"pair": [1, 2]}, "everything.pair[1] is 2, not a text"),
        ({"tree": {"number": 1, "children": []}}, "not one of Leaf, Branch"),
        ({"tree": {"children": [{"number": "1"}]}}, "everything.tree.children[0].number is '1', not an integer"),
        ({"either": {}}, "everything.either is {}, not one of"),
        ({"either": [1]}, "everything.either[0] is 1, not a text"),
        ({"options": []}, "everything.options is [], not an object"),
        ({"options": {"a": "b"}}, "everything.options.a is 'b', not an integer"),
        ({"more": 1}, "not an object with the fields name, plan, word"),
    ],
)
def test_what_is_of_another_type_is_refused(changes, message):
    content = json.dumps({**json.loads(codec.encode(VALUE)), **changes})
    with pytest.raises(ValueError, match=re.escape(message)):
        codec.decode(Everything, content, "everything")


@dataclass(frozen=True)
class Oak:
    TAG: ClassVar[str] = "oak"

    age: float


@dataclass(frozen=True)
class Elm:
    TAG: ClassVar[str] = "elm"

    age: float


@dataclass(frozen=True)
class Wood:
    trees: Mapping[str, Oak | Elm]


def test_classes_of_the_same_fields_are_told_apart_by_their_tags():
    wood = Wood({"left": Oak(3), "right": Elm(0.5)})
    content = codec.encode(wood)
    assert json.loads(content)["trees"]["left"] == {"kind": "oak", "age": 3}
    assert codec.decode(Wood, content, "wood") == wood
    with pytest.raises(ValueError, match=r"wood.trees.left is .* not one of Oak, Elm"):
        codec.decode(Wood, content.replace(b"oak", b"ash"), "wood")
    with pytest.raises(ValueError, match=r"oak is .* not an object with the fields age"):
        codec.decode(Oak, codec.encode(Elm(1)), "oak")


STRICT = [
    (b"{", "oak is not strict JSON"),
    (b"\xff", "oak is not strict JSON"),
    (b"[" * 100_000, "oak is not strict JSON"),
    (b'{"age": 1, "age": 1}', "an object has a field twice"),
    (b'[{"a": 1, "b": {"c": 1, "c": 2}}]', "an object has a field twice"),
    (b'{"age": NaN}', "NaN is not a number"),
    (b'{"age": -Infinity}', "-Infinity is not a number"),
    (b'{"format": 1, "kind": "oak", "age": 1e999}', "oak.age is inf, not a finite number"),
    (b'{"format": 1, "kind": "oak"}', "not an object with the fields age"),
    *((b"[]", "oak is of format .*, not 1"), (b"{}", "oak is of format .*, not 1")),
    *((b'{"format": %s}' % found, "oak is of format .*, not 1") for found in (b"2", b"true", b"1.0")),
    (b'{"format": 1, "kind": "oak", "age": [%s1]}' % (b"1," * 1000), r"^oak.age is .{,80}, not a finite number$"),
]


@pytest.mark.parametrize(("content", "message"), STRICT)
def test_what_is_not_strict_or_of_another_format_is_refused(content, message):
    with pytest.raises(ValueError, match=message):
        codec.decode(Oak, content, "oak", format=1)


def test_what_has_no_json_is_not_encoded():
    with pytest.raises(ValueError):
        codec.encode(replace(VALUE, seconds=float("nan")))
    with pytest.raises(TypeError, match="object cannot be encoded"):
        codec.to_json((object(),))


@given(graph=graphs())
@settings(max_examples=60)
def test_a_region_comes_back_as_it_was(graph):
    instance = Instance(graph, tuple(reversed(range(len(graph.inputs)))), tuple(range(len(graph.outputs))))
    assert decode_region(encode_region(instance)) == instance


TENSOR = TensorType("bfloat16", (2, Ref(2)), "cuda")
SIZED = Graph((TENSOR, NumberType("float")), (Op("prims.add", (Ref(0), Ref(1), (Ref(2),)), (TENSOR,)),), (3,), 1)


def test_a_plain_region_must_have_the_same_inputs_and_outputs():
    region = make_region()
    instance = Instance(region, (0, 1), (0, 1), region)
    assert codec.decode(Instance, codec.encode(instance), "instance") == instance
    with pytest.raises(ValueError, match="a plain region with other inputs or outputs"):
        codec.decode(Instance, codec.encode(replace(instance, plain=replace(region, outputs=(0,)))), "instance")


LAYOUT = ((2, 3), (3, 1))
OPTIONS = {"enable": ("a", "b"), "mode": None, "flag": True}
REQUEST = Request(make_region(), (LAYOUT,) * 2, "nvfuser", OPTIONS, {"torch.flag": False})


def test_a_request_comes_back_as_it_was_and_without_settings_where_there_were_none():
    for request in (REQUEST, Request(SIZED, (((2, 4), (4, 1)), None), "inductor", {})):
        assert decode_request(encode_request(request)) == request
    body = json.loads(encode_request(REQUEST))
    del body["settings"]
    assert decode_request(json.dumps(body)) == replace(REQUEST, settings={})


@pytest.mark.parametrize("layouts", [(), (LAYOUT,), (LAYOUT, None), (LAYOUT, ((2, 4), (4, 1))), (((2, 3), (3,)),) * 2])
def test_a_request_for_other_arguments_is_refused(layouts):
    with pytest.raises(ValueError):
        decode_request(encode_request(Request(make_region(), layouts, "eager", {})))


@given(data=st.data())
@settings(max_examples=200)
def test_a_region_or_a_request_with_a_byte_changed_is_a_sound_one_or_refused(data):
    given = data.draw(
        st.sampled_from([encode_region(Instance(make_region(), (0, 1), (0, 1))), encode_request(REQUEST)])
    )
    content = bytearray(given)
    content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(32, 126))
    try:
        found = (decode_request if b"layouts" in given else decode_region)(bytes(content))
    except ValueError:
        return
    region = found.graph if isinstance(found, Request) else found.region
    known = region.first_result + sum(len(op.outputs) for op in region.ops)
    assert all(value < known for value in region.outputs)
    for type_, layout in zip(region.inputs, getattr(found, "layouts", ()), strict=False):
        assert isinstance(type_, TensorType) and layout is not None
        assert len(layout[0]) == len(layout[1]) == len(type_.shape)


@pytest.mark.parametrize("number", [2, 3, 9])
def test_a_region_that_uses_what_is_not_computed_yet_is_refused(number):
    region = make_region()
    ops = replace(region.ops[0], args=(Ref(number), *region.ops[0].args[1:])), *region.ops[1:]
    with pytest.raises(ValueError, match="uses what is not computed yet"):
        decode_region(encode_region(Instance(replace(region, ops=ops), (0, 1), (0, 1))))


LINES = st.text(st.characters(exclude_characters="\n"))
SIZES = st.lists(st.integers(0, 1 << 40), max_size=4).map(tuple)
TEXTS = {
    "key": st.dictionaries(LINES.filter(bool), st.text()),
    "values": st.dictionaries(st.text(st.characters(exclude_characters=" \n"), min_size=1), LINES),
    "layouts": st.lists(st.none() | st.tuples(SIZES, SIZES)).map(tuple),
    "changed": st.tuples(LINES, st.text(st.characters(exclude_characters="()\n"))),
}


@pytest.mark.parametrize("kind", TEXTS)
@given(data=st.data())
def test_a_text_in_keys_is_read_as_it_was_written(kind, data):
    value = data.draw(TEXTS[kind])
    given = {"values": lambda: [value.items()], "changed": lambda: value}.get(kind, lambda: [value])()
    assert getattr(keys, f"read_{kind}")(getattr(keys, f"write_{kind}")(*given)) == value


def test_the_bytes_are_these():
    assert keys.write_key({"a": "x", "b": ""}) == "a 1\nx\nb 0\n\n" != keys.write_key({"a": "x\nb 0\n"})
    assert keys.write_values([("torch", "2.10.0"), ("enabled", True)]) == "torch 2.10.0\nenabled True"
    assert [*keys.write_lines([("code", "a\nb"), ("enabled", True)])] == ["code a\\nb", "enabled True"]
    assert (
        keys.write_layouts((((2, 3), (3, 1)), None, ((), ()), ((4,), (1,))))
        == "(2, 3) (3, 1)\nnumber\n() ()\n(4,) (1,)"
    )
    assert keys.write_changed("True", "False") == "True (default False)"


def test_what_is_no_text_of_a_key_and_what_says_no_layout_is_refused():
    text = keys.write_key({"ops": "12345", "odd name": "ops 5\nfive\n"})
    for one in (text[:-1], text + "x", "ops 3\n12345\n", "ops five\n", text * 2):
        with pytest.raises(ValueError, match="no text of a key"):
            keys.read_key(one)
    for one in ("any", "(2, 3)", "(2, 3) (3, 1) (1)", "(2, x) (3, 1)", "(2, 3) (3, 1)\n"):
        with pytest.raises(ValueError, match="no layout"):
            keys.read_layouts(one)
