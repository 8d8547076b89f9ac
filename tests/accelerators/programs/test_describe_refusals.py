"""What has no value, and what is not done to get one: no code of a value runs, and no secret is written."""

import functools
import io
import itertools
import logging
import operator
import os
import threading
import types

import numpy as np
import pytest
import torch
from described import Box, described

from fusioncache.accelerators.programs.describe import Describer
from fusioncache.ir.errors import Declined


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (threading.Lock, "a _thread.lock has no value to compare"),
        (io.StringIO, "a _io.StringIO has no value to compare"),
        (lambda: logging.getLogger("of a test"), "a _.* has no value"),
        (lambda: iter([1]), "a builtins.list_iterator has no value to compare"),
        (lambda: itertools.count(), "a itertools.count has no value to compare"),
        (lambda: (x for x in ()), "a builtins.generator has no value to compare"),
        (lambda: os.environ, "the environment is not a value"),
        (lambda: torch.Generator(), "a torch._C.Generator has no value to compare"),
        (lambda: ValueError("a"), "a builtins.ValueError has no value to compare"),
        (lambda: types.ModuleType("nowhere"), "the module nowhere is not found under its name"),
        (lambda: np.frompyfunc(len, 1, 1), "a numpy.ufunc has no value to compare"),
        (lambda: operator.attrgetter("a"), "a operator.attrgetter has no value to compare"),
        (lambda: bytearray(b"1"), "a builtins.bytearray has no value to compare"),
        (lambda: np.array([Box()]), "an array of objects"),
        (lambda: [1, {2: [threading.Lock()]}], "a _thread.lock has no value to compare"),
        (lambda: functools.reduce(lambda inner, _: [inner], range(1000), []), "nested more than"),
    ],
)
def test_what_has_no_value_says_why(make, reason):
    describer = Describer()
    with pytest.raises(Declined, match=reason):
        describer.describe(make())


def test_nothing_stays_of_what_has_no_value():
    describer = Describer()
    inner, lock = [1], threading.Lock()
    with pytest.raises(Declined):
        describer.describe([inner, lock])
    assert describer.describe(inner) == "[1, ]"


def test_a_long_text_is_its_beginning_and_a_hash():
    words = ["one", "other"] * 2500
    text = described(words)
    assert len(text) < 11_000 and text.startswith("['one', 'other', ")
    assert described([*words[:-1], "another"]) != text == described(list(words))


def test_there_is_a_limit():
    with pytest.raises(Declined, match="more than 1000000 values"):
        described([0] * 1_000_001)


class Hostile:
    """Whatever is asked of it, it says that it was asked."""

    def __getattribute__(self, name):
        raise AssertionError(name)

    def __eq__(self, other):
        raise AssertionError("==")

    def __hash__(self):
        raise AssertionError("hash")

    __repr__ = __str__ = __len__ = __bool__ = __iter__ = __reduce__ = __index__ = __hash__


class HostileKind(type):
    def __getattribute__(cls, name):
        raise AssertionError(name)

    def __hash__(cls):
        raise AssertionError("hash")

    def __eq__(cls, other):
        raise AssertionError("==")

    __repr__ = __instancecheck__ = __subclasscheck__ = __hash__


class HostileList(list):
    def __iter__(self):
        raise AssertionError("iter")

    __len__ = __getitem__ = __repr__ = __iter__


class HostileDict(dict):
    def items(self):
        raise AssertionError("items")

    keys = values = __iter__ = __getitem__ = __len__ = items


class HostileNumber(int):
    def __repr__(self):
        raise AssertionError("repr")

    __str__ = __index__ = __int__ = __hash__ = __repr__


class HostileString(str):
    def __repr__(self):
        raise AssertionError("repr")

    __str__ = __len__ = __hash__ = __iter__ = __repr__


def test_no_code_of_a_value_runs():
    hostile = object.__new__(Hostile)
    object.__getattribute__(hostile, "__dict__")["a"] = 1
    kind = HostileKind("Kind", (), {})
    values = [
        hostile,
        object.__new__(kind),
        HostileList([1, 2]),
        HostileDict({1: 2}),
        HostileNumber(3),
        HostileString("s"),
    ]
    text = described(values)
    assert text == described(values)
    for part in ("{'a': 1, }", "Kind", "[1, 2, ]", "{1: 2, }", " 3", "'s'"):
        assert part in text
