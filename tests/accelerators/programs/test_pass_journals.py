"""Journals of passes as data: a journal is decoded completely, and everything else is refused."""

import copy
import functools
import json
import operator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusioncache.accelerators.sizes.families import (
    DECIDERS,
    Decision,
    PassJournal,
    TensorArgument,
    decode_outline,
    encode_outline,
)
from fusioncache.accelerators.sizes.journal import SizeGuard
from fusioncache.accelerators.sizes.sizes import ARITHMETIC, COMPARISONS, Number, Operation, write_constant

NUMBERS = [Number(1, "x[0]"), Number(2, "x[1]")]
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
EXPRESSIONS = st.recursive(
    st.sampled_from(NUMBERS)
    | st.integers(-9, 9)
    | st.floats(allow_nan=False, allow_infinity=False).map(write_constant),
    lambda inner: st.builds(Operation, st.sampled_from(sorted(ARITHMETIC)), inner, inner),
    max_leaves=6,
)
LISTS = st.lists(EXPRESSIONS, max_size=3).map(tuple)
GUARDS = st.builds(
    SizeGuard, st.sampled_from(sorted(COMPARISONS)), EXPRESSIONS, EXPRESSIONS, st.booleans(), TEXTS, TEXTS
)
ASKED = (
    st.none()
    | st.booleans()
    | st.floats(allow_nan=False, allow_infinity=False)
    | EXPRESSIONS
    | st.builds(TensorArgument, LISTS, TEXTS, st.sampled_from(["float32", "bfloat16"]), st.booleans())
)
DECISIONS = st.builds(Decision, st.sampled_from(sorted(DECIDERS)), st.lists(ASKED, max_size=4).map(tuple), TEXTS)
JOURNALS = st.builds(
    PassJournal,
    st.just(((0, (*NUMBERS, 1)), ("name", (3,)), ((1, "x", 0), (2,)))),
    st.lists(GUARDS, max_size=3).map(tuple),
    st.lists(LISTS.map(lambda one: (one, tuple(reversed(one)))), max_size=2).map(tuple),
    st.lists(DECISIONS, max_size=2).map(tuple),
    st.lists(EXPRESSIONS, max_size=4).map(tuple),
    st.lists(EXPRESSIONS, max_size=2).map(tuple),
)


@given(JOURNALS)
def test_all_of_it_comes_back(journal):
    content = encode_outline(journal, [])
    found, _ = decode_outline(content)
    assert repr(found) == repr(journal)  # text distinguishes 1, 1.0 and True
    assert encode_outline(found, []) == content


EXAMPLE = PassJournal(
    ((0, (*NUMBERS, 1)),),
    (SizeGuard("<", NUMBERS[0], 100, True, "compares", "model.py:1"),),
    (((NUMBERS[0],), (Operation("+", NUMBERS[0], write_constant(0.5)),)),),
    (Decision("_fused_sdp_choice", (TensorArgument((2, NUMBERS[1]), "cpu", "float32", False), True, 0.5), "MATH"),),
    tuple(NUMBERS),
    (Operation("*", NUMBERS[1], 16),),
)


WRITTEN = json.loads(encode_outline(EXAMPLE, []))


def list_places(content, place=()):
    """Yields the path to each part of decoded JSON."""
    yield place
    pairs = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for name, part in pairs:
        yield from list_places(part, (*place, name))


def read_exchanged(place, new):
    """Decodes the example with one part replaced."""
    content = [copy.deepcopy(WRITTEN)]
    functools.reduce(operator.getitem, (0, *place)[:-1], content)[(0, *place)[-1]] = new
    return decode_outline(json.dumps(content[0]))[0]


@pytest.mark.parametrize("new", [None, -(10**20), 99, 1.5, "other", [], {}, [[]]])
def test_with_anything_else_in_the_place_of_a_part_it_is_another_journal_or_none(new):
    refused = 0
    for place in list_places(WRITTEN):
        if json.dumps(functools.reduce(operator.getitem, place, WRITTEN)) == json.dumps(new):
            continue
        try:
            assert repr(read_exchanged(place, new)) != repr(EXAMPLE), place
        except ValueError:
            refused += 1
    assert refused > 20


@pytest.mark.parametrize(
    ("place", "new", "message"),
    [
        (("sizes", 0, 1, 1), 7, "all numbers, each once"),
        (("in_comments", 0, "symbol"), "is", "a text like"),
        (("guards", 0, "outcome"), 1, "true or false"),
        (("decisions", 0, "function"), "print", "a text like"),
        (("unequal", 0, 1, 0, "right", "text"), "nan", "no number with a point"),
    ],
)
def test_what_is_no_journal_is_refused(place, new, message):
    with pytest.raises(ValueError, match=message):
        read_exchanged(("passes", *place), new)


@pytest.mark.parametrize("sizes", [{0: (2, 40)}, {1: (2, 40, 1)}, {0: (2, 40, 1), 1: ()}, {(0,): (2, 40, 1)}, {}])
def test_sizes_of_other_arguments_and_other_formats_are_refused(sizes):
    with pytest.raises(ValueError, match="arguments"):
        decode_outline(encode_outline(EXAMPLE, [sizes]))
    with pytest.raises(ValueError, match="format"):
        decode_outline(b"{}")
