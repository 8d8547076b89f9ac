"""Recipes of stored nvFuser kernels: written, read, and refused where they cannot be."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_recipe import FLAT, RECIPE, make_launch

from fusioncache.backends.nvfuser.recipe import (
    Duplicate,
    Fill,
    Fresh,
    Input,
    Layout,
    Pointer,
    View,
    decode,
    encode,
)

WRITTEN_BEFORE = (
    b'{"version":3,"inputs":[{"layout":{"dtype":"float32","shape":[4,8],"strides":[8,1]},"alignment":16},{'
    b'"layout":{"dtype":"bfloat16","shape":[8],"strides":[1]},"alignment":2}],"allocations":[128,512],"out'
    b'puts":[{"layout":{"dtype":"float32","shape":[4,8],"strides":[8,1]},"allocation":0,"offset":0},{"layo'
    b'ut":{"dtype":"float32","shape":[8],"strides":[1]},"input":0,"offset":8,"itself":false},{"output":0},'
    b'{"layout":{"dtype":"float32","shape":[4,8],"strides":[8,1]},"allocation":1,"offset":128}],"steps":[{'
    b'"buffer":3,"delta":0,"size":256,"value":0},{"cubin":"0.cubin","function":"_ZN3nvf30nvfuser_pointwise'
    b'_f0_c1_r0_g0E","grid":[7,2,1],"block":[128,1,1],"shared":16,"most_shared":49152,"cooperative":true,"'
    b'parameters":["00000000000000000400000008000000","000000000000000000000000000000000000000000000000","'
    b'05"],"pointers":[{"parameter":0,"offset":0,"buffer":0,"delta":0},{"parameter":1,"offset":8,"buffer":'
    b'2,"delta":64}]}],"widest":16}'
)
"""The recipe as version 3 of the format was first written. Stores hold such recipes."""


def test_recipes_in_stores_are_read_and_written_as_they_were():
    assert decode(WRITTEN_BEFORE) == RECIPE
    assert encode(RECIPE) == WRITTEN_BEFORE


@pytest.mark.parametrize("alignment", [1, 4, 8])
def test_other_recipes_come_back(alignment):
    inputs, launch = (Input(FLAT, alignment), RECIPE.inputs[1]), make_launch(cooperative=False)
    recipe = replace(RECIPE, inputs=inputs, outputs=(), steps=(launch,), widest=32)
    assert decode(encode(recipe)) == recipe


WRONG = {
    "unknown dtype": {"inputs": lambda: (Input(Layout("float8", (1,), (1,)), 16),)},
    "negative stride": {"inputs": lambda: (Input(Layout("float32", (2,), (-1,)), 16),)},
    "alignment 3": {"inputs": lambda: (Input(FLAT, 3),)},
    "output beyond its allocation": {"allocations": (127, 512)},
    "negative allocation": {"allocations": (-1, 512)},
    "unknown allocation": {"outputs": (Fresh(FLAT, 2, 0),)},
    "again of a later one": {"outputs": (Duplicate(0),)},
    "view beyond its input": {"outputs": (View(FLAT, 0, 1, False),)},
    "view of another dtype": {"outputs": (View(Layout("int32", (8,), (1,)), 0, 0, False),)},
    "itself in another layout": {"outputs": (View(Layout("float32", (32,), (1,)), 0, 0, True),)},
    "output between elements": {"outputs": (Fresh(FLAT, 1, 2),)},
    "fill beyond its buffer": {"steps": (Fill(2, 64, 65, 0),)},
    "fill of a large byte": {"steps": (Fill(2, 0, 1, 256),)},
    "fill of an unknown buffer": {"steps": (Fill(4, 0, 1, 0),)},
    "pointer beyond its parameter": {"steps": (make_launch(pointers=(Pointer(0, 16, 0, 0),)),)},
    "pointer across a parameter's end": {"steps": (make_launch(pointers=(Pointer(0, 12, 0, 0),)),)},
    "pointer of an unknown parameter": {"steps": (make_launch(pointers=(Pointer(3, 0, 0, 0),)),)},
    "pointer beyond its buffer": {"steps": (make_launch(pointers=(Pointer(0, 0, 0, 128),)),)},
    "pointer before its buffer": {"steps": (make_launch(pointers=(Pointer(0, 0, 0, -8),)),)},
    "two pointers in a place": {"steps": (make_launch(pointers=(Pointer(0, 0, 0, 0), Pointer(0, 0, 1, 0))),)},
    "an address left in": {"steps": (make_launch(parameters=(b"\x01" * 16,), pointers=(Pointer(0, 0, 0, 0),)),)},
    "no grid": {"steps": (make_launch(grid=(0, 1, 1)),)},
    "too many threads": {"steps": (make_launch(block=(1024, 2, 1)),)},
    "too much shared memory": {"steps": (make_launch(shared=2**20, most_shared=2**20),)},
    "less shared memory than asked for": {"steps": (make_launch(most_shared=8),)},
    "a cubin with a path": {"steps": (make_launch(cubin="../x"),)},
    "a name with a zero": {"steps": (make_launch(function="a\0b"),)},
    "too many parameters": {"steps": (make_launch(parameters=(bytes(40000),), pointers=()),)},
    "true for a number": {"steps": (make_launch(grid=(True, 1, 1)),)},
    "widest 64": {"widest": 64},
}


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG.keys())
def test_recipes_that_cannot_be_are_refused(change):
    with pytest.raises(ValueError, match="a recipe that is wrong about"):
        replace(RECIPE, **{name: value() if callable(value) else value for name, value in change.items()})


def paths(value, path=()):
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, item in items:
        yield from paths(item, (*path, name))


WRITTEN = json.loads(encode(RECIPE))
JUNK = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.lists(st.integers()))


@given(st.sampled_from(list(paths(WRITTEN))[1:]), JUNK)
def test_damaged_recipes_are_refused_or_in_range(path, junk):
    damaged = json.loads(encode(RECIPE))
    parent = damaged
    for name in path[:-1]:
        parent = parent[name]
    parent[path[-1]] = junk
    try:
        recipe = decode(json.dumps(damaged).encode())
    except ValueError:
        return
    for step in recipe.steps:
        for pointer in getattr(step, "pointers", ()):
            assert 0 <= pointer.delta < recipe.extents[pointer.buffer]


@pytest.mark.parametrize("text", ["[" * 100000, "{}", "null", '{"version":1,"version":1}', "\ud800"])
def test_texts_that_are_no_recipe_are_refused(text):
    with pytest.raises(ValueError):
        decode(text.encode(errors="surrogatepass"))
