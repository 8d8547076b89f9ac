"""The strict decoder: what it takes, what it refuses, and that errors name what is wrong."""

import re

import pytest

from fusioncache.ir.strict_json import LARGEST, decode, encode


def test_what_was_encoded_is_read_again():
    body = {"format": 2, "names": ["a", "b"], "sizes": [1, 2], "scale": 0.5, "count": 3, "on": True, "nothing": None}
    content = encode(body)
    names, sizes, scale, count, on, nothing = decode(content, "body", format=2).fields(*list(body)[1:])
    assert [name.text() for name in names.items(2)] == ["a", "b"]
    assert [size.integer() for size in sizes.items()] == [1, 2]
    assert (scale.number(), count.number(), on.boolean()) == (0.5, 3, True)
    assert nothing.content is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "body is not strict JSON"),
        (b"\xff", "body is not strict JSON"),
        (b"[" * 100_000, "body is not strict JSON"),
        (b'{"a": 1, "a": 1}', "an object has a field twice"),
        (b'[{"a": 1, "b": {"c": 1, "c": 2}}]', "an object has a field twice"),
        (b'{"a": NaN}', "NaN is not a number"),
        (b'{"a": -Infinity}', "-Infinity is not a number"),
    ],
)
def test_what_is_not_strict_is_refused(content, message):
    with pytest.raises(ValueError, match=message):
        decode(content, "body")


@pytest.mark.parametrize("content", [b"[]", b"{}", b'{"format": 2}', b'{"format": true}', b'{"format": 1.0}'])
def test_another_format_is_refused(content):
    with pytest.raises(ValueError, match=r"body is of format .*, not 1"):
        decode(content, "body", format=1)


@pytest.mark.parametrize(
    ("content", "ask", "message"),
    [
        ("[]", lambda value: value.fields("a"), "body is [], not an object with the fields a"),
        ('{"a": 1, "b": 2}', lambda value: value.fields("a"), "not an object with the fields a"),
        ('{"a": 1}', lambda value: value.fields("a", "b"), "not an object with the fields a, b"),
        ("[1]", lambda value: value.members(), "body is [1], not an object"),
        ('{"a": 1}', lambda value: value.items(), "body is {'a': 1}, not a list"),
        ("[1, 2]", lambda value: value.items(3), "body is [1, 2], not a list of 3"),
        ("true", lambda value: value.integer(), "body is True, not an integer from 0 to"),
        ("-1", lambda value: value.integer(), "body is -1, not an integer from 0 to"),
        ("1", lambda value: value.integer(2, 5), "body is 1, not an integer from 2 to 5"),
        (str(LARGEST + 1), lambda value: value.integer(), f"not an integer from 0 to {LARGEST}"),
        ("1.0", lambda value: value.integer(), "body is 1.0, not an integer"),
        ("1e999", lambda value: value.number(), "body is inf, not a finite number"),
        ("1" + "0" * 400, lambda value: value.number(), "not an integer from"),
        ("true", lambda value: value.number(), "body is True, not a finite number"),
        ("1", lambda value: value.boolean(), "body is 1, not true or false"),
        ("1", lambda value: value.text(), "body is 1, not a text"),
        (r'"\ud800"', lambda value: value.text(), "not a text"),
        ('"abc\\n"', lambda value: value.text(re.compile("[a-z]*")), "not a text like [a-z]*"),
        ('{"a": [{"b": null}]}', lambda value: value.fields("a")[0].items()[0].fields("b")[0].text(), "body.a[0].b is"),
    ],
)
def test_an_error_names_what_is_wrong(content, ask, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        ask(decode(content, "body"))


def test_an_error_does_not_repeat_a_long_value():
    with pytest.raises(ValueError) as raised:
        decode("[" + "1, " * 1000 + "1]", "body").text()
    assert len(str(raised.value)) < 100
