"""Random values: equal texts if and only if nothing tells the values apart."""

from typing import Any

from described import Box, described
from hypothesis import given
from hypothesis import strategies as st

plain = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.binary(max_size=5))
nested = st.recursive(
    plain,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.text(max_size=3), inner, max_size=4),
        st.dictionaries(st.text("abc", min_size=1, max_size=3), inner, max_size=3).map(lambda items: Box(**items)),
        st.sets(st.integers() | st.text(max_size=3), max_size=4),
    ),
    max_leaves=12,
)


def exactly(value: Any) -> Any:
    """Returns something that is equal for two values if and only if nothing tells them apart."""
    if isinstance(value, Box):
        return Box, exactly(value.__dict__)
    if isinstance(value, dict):
        return dict, tuple((exactly(key), exactly(item)) for key, item in value.items())
    if isinstance(value, set):
        return set, frozenset(map(exactly, value))
    if isinstance(value, list | tuple):
        return type(value), tuple(map(exactly, value))
    return type(value), repr(value)


@given(nested, nested)
def test_texts_are_equal_if_and_only_if_values_are(first, second):
    assert (described(first) == described(second)) == (exactly(first) == exactly(second))


@given(nested)
def test_a_copy_has_the_same_text(value):
    def copy(part):
        if isinstance(part, Box):
            return Box(**copy(part.__dict__))
        if isinstance(part, dict):
            return {key: copy(item) for key, item in part.items()}
        return type(part)(map(copy, part)) if isinstance(part, list | tuple | set) else part

    assert described(value) == described(copy(value))
