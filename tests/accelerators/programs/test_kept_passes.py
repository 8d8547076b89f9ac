"""What passes looked at, as data: all of it comes back, and what is anything else is refused."""

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusioncache.accelerators.programs.kept_passes import decode_passes, decode_sizes, encode_passes, encode_sizes
from fusioncache.accelerators.sizes.decisions import DECIDERS, AskedTensor, Decision
from fusioncache.accelerators.sizes.expressions import ARITHMETIC, COMPARISONS, Number, Operation, write_constant
from fusioncache.accelerators.sizes.journal import Look
from fusioncache.accelerators.sizes.pass_journal import PassJournal
from fusioncache.ir import strict_json

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
LOOKS = st.builds(Look, st.sampled_from(sorted(COMPARISONS)), EXPRESSIONS, EXPRESSIONS, st.booleans(), TEXTS, TEXTS)
ASKED = (
    st.none()
    | st.booleans()
    | st.floats(allow_nan=False, allow_infinity=False)
    | EXPRESSIONS
    | st.builds(AskedTensor, LISTS, TEXTS, st.sampled_from(["float32", "bfloat16"]), st.booleans())
)
DECISIONS = st.builds(Decision, st.sampled_from(sorted(DECIDERS)), st.lists(ASKED, max_size=4).map(tuple), TEXTS)
JOURNALS = st.builds(
    PassJournal,
    st.just({0: (*NUMBERS, 1), "name": (3,), (1, "x", 0): (2,)}),
    st.lists(LOOKS, max_size=3).map(tuple),
    st.lists(LISTS.map(lambda one: (one, tuple(reversed(one)))), max_size=2).map(tuple),
    st.lists(DECISIONS, max_size=2).map(tuple),
    st.frozensets(EXPRESSIONS, max_size=4),
    st.dictionaries(st.sampled_from(["t1", "t96"]), st.lists(EXPRESSIONS, max_size=3).map(tuple), max_size=2),
)


def read(content):
    return decode_passes(strict_json.decode(content, "passes"))


@given(JOURNALS)
def test_all_of_it_comes_back(journal):
    content = strict_json.encode(encode_passes(journal))
    found = read(content)
    assert found == journal
    assert repr(found.decisions) == repr(journal.decisions)  # where 1, 1.0 and True are not the same
    assert list(found.sizes) == list(journal.sizes)
    assert strict_json.encode(encode_passes(found)) == content


EXAMPLE = PassJournal(
    {0: (*NUMBERS, 1)},
    (Look("<", NUMBERS[0], 100, True, "compares", "model.py:1"),),
    (((NUMBERS[0],), (Operation("+", NUMBERS[0], write_constant(0.5)),)),),
    (Decision("_fused_sdp_choice", (AskedTensor((2, NUMBERS[1]), "cpu", "float32", False), True, 0.5), "MATH"),),
    frozenset(NUMBERS),
    {"t96": (2, Operation("*", NUMBERS[1], 16))},
)


def list_places(content, place=()):
    """Yields the way to each part of decoded JSON."""
    yield place
    pairs = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for name, part in pairs:
        yield from list_places(part, (*place, name))


def exchange(content, place, new):
    """Returns decoded JSON with something else in one place."""
    if not place:
        return new
    content = copy.deepcopy(content)
    inner = content
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = new
    return content


@pytest.mark.parametrize("new", [None, -(10**20), 99, 1.5, "other", [], {}, [[]]])
def test_whatever_is_in_the_place_of_a_part_another_journal_comes_of_it_or_none(new):
    written = encode_passes(EXAMPLE)
    refused = 0
    for place in list_places(written):
        changed = exchange(written, place, new)
        if json.dumps(changed) == json.dumps(written):
            continue
        try:
            assert read(json.dumps(changed)) != EXAMPLE, place
        except ValueError:
            refused += 1
    assert refused > 20


@given(st.binary(max_size=20))
def test_other_bytes_are_refused(content):
    with pytest.raises(ValueError):
        read(content)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda body: body["values"].append([3, "y"]), "all numbers, each once"),
        (lambda body: body["sizes"].append([1, body["sizes"][0][1]]), "all numbers, each once"),
        (lambda body: body["sizes"].append(body["sizes"][0]), "each place once"),
        (lambda body: body["sizes"][0].__setitem__(0, [0]), "a place in an argument"),
        (lambda body: body["values"].insert(0, ["+", 0, 0]), "an integer from 0"),
        (lambda body: body["looks"][0].__setitem__(0, "is"), "one of !=, <"),
        (lambda body: body["decisions"][0].update(function="print"), "one of _fused_sdp_choice"),
        (lambda body: body["sizes"][0][1].append(body["unequal"][0][1][0]), "is computed"),
        (lambda body: body["unequal"][0][1].append(0), "two lists of one length"),
    ],
)
def test_what_is_no_journal_is_refused(change, message):
    body = encode_passes(EXAMPLE)
    change(body)
    with pytest.raises(ValueError, match=message):
        read(json.dumps(body))


def test_sizes_come_back():
    sizes = {0: (2, 40), "length": (40,), 1: (), (2, 1): (3,), ("batch", "x", 0): (4,)}
    content = strict_json.encode({"sizes": encode_sizes(sizes)})
    assert decode_sizes(strict_json.decode(content, "known").fields("sizes")[0]) == sizes


def test_what_is_shared_is_written_once():
    """Else what is made of itself, again and again, would take a file that doubles each time."""
    large = NUMBERS[0]
    for _ in range(10):
        large = Operation("+", large, large)
    journal = PassJournal({0: (NUMBERS[0],)}, (), (), (), frozenset([large]))
    assert len(encode_passes(journal)["values"]) == 11
