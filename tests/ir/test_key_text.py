"""The texts of keys: what was written is read again as it was, and nothing else is read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusioncache.ir import keys

NAMES = st.text(st.characters(exclude_characters=" \n"), min_size=1)
LINES = st.text(st.characters(exclude_characters="\n"))
SIZES = st.lists(st.integers(0, 1 << 40), max_size=4).map(tuple)
LAYOUTS = st.lists(st.none() | st.tuples(SIZES, SIZES)).map(tuple)


@given(st.dictionaries(st.text(st.characters(exclude_characters="\n"), min_size=1), st.text()))
def test_a_key(texts):
    assert keys.read_key(keys.write_key(texts)) == texts


@given(st.dictionaries(NAMES, LINES))
def test_a_list_of_values(values):
    assert keys.read_values(keys.write_values(values.items())) == values


@given(LAYOUTS)
def test_layouts(layouts):
    assert keys.read_layouts(keys.write_layouts(layouts)) == layouts


@given(LINES, st.text(st.characters(exclude_characters="()\n")))
def test_a_value_that_is_not_the_default(value, default):
    assert keys.read_changed(keys.write_changed(value, default)) == (value, default)


def test_the_bytes_are_these():
    assert keys.write_key({"a": "x", "b": ""}) == "a 1\nx\nb 0\n\n" != keys.write_key({"a": "x\nb 0\n"})
    assert keys.write_values([("torch", "2.10.0"), ("enabled", True)]) == "torch 2.10.0\nenabled True"
    assert [*keys.write_lines([("code", "a\nb"), ("enabled", True)])] == ["code a\\nb", "enabled True"]
    assert (
        keys.write_layouts((((2, 3), (3, 1)), None, ((), ()), ((4,), (1,))))
        == "(2, 3) (3, 1)\nnumber\n() ()\n(4,) (1,)"
    )
    assert keys.write_changed("True", "False") == "True (default False)"


def test_what_is_no_text_of_a_key_is_refused():
    text = keys.write_key({"ops": "12345", "odd name": "ops 5\nfive\n"})
    for one in (text[:-1], text + "x", "ops 3\n12345\n", "ops five\n", text * 2):
        with pytest.raises(ValueError, match="no text of a key"):
            keys.read_key(one)


@pytest.mark.parametrize("text", ["any", "(2, 3)", "(2, 3) (3, 1) (1)", "(2, x) (3, 1)", "(2, 3) (3, 1)\n"])
def test_what_says_no_layout_is_refused(text):
    with pytest.raises(ValueError, match="no layout"):
        keys.read_layouts(text)
