"""Objects are compared by identity, and none of them is asked anything."""

import ctypes
import sys
from collections.abc import Callable

import pytest

from fusioncache.program import identities
from fusioncache.program.identities import are_same


class Stranger:
    """An object that nobody may ask anything."""

    def _refuse(self, *given: object) -> bool:
        raise AssertionError("was asked")

    __eq__ = __ne__ = __bool__ = __len__ = __iter__ = __hash__ = _refuse  # type: ignore[assignment]


ONE, OTHER = Stranger(), Stranger()
MANY = [Stranger() for _ in range(1000)]


@pytest.fixture(params=["by memory", "one by one"], autouse=True)
def _way(request, monkeypatch):
    assert identities.COMPARE_MEMORY is not None  # or both are the same
    if request.param == "one by one":
        monkeypatch.setattr(identities, "COMPARE_MEMORY", None)


@pytest.mark.parametrize("make", [list, tuple])
def test_only_the_very_same_objects_in_the_same_order_are_the_same(make: Callable):
    assert are_same(make([]), make([]))
    assert are_same(make([ONE, OTHER, ONE]), make([ONE, OTHER, ONE]))
    assert are_same(make(MANY), make(iter(MANY)))
    for some, others in (
        ([ONE], [OTHER]),
        ([ONE, OTHER], [OTHER, ONE]),
        ([ONE], [ONE, ONE]),
        ([ONE], []),
        ([1.0], [float("1")]),
        ([[]], [[]]),
        (MANY, [*MANY[:-1], ONE]),
        (MANY, [ONE, *MANY[1:]]),
    ):
        assert not are_same(make(some), make(others)) and not are_same(make(others), make(some))
        assert are_same(make(some), make(some)) and are_same(make(others), make(others))


def test_sequences_of_other_kinds_are_compared_as_well():
    assert are_same([ONE, OTHER], (ONE, OTHER)) and are_same((ONE,), [ONE])
    assert not are_same([ONE, OTHER], (OTHER, ONE))

    class Own(list[object]):
        __slots__ = ("before",)

    assert are_same(Own([ONE]), [ONE]) and not are_same(Own([ONE]), [OTHER])


def test_lists_that_grew_and_shrank_are_compared_by_what_is_in_them():
    grown, shrunk = [ONE], [ONE, OTHER, *MANY]
    grown.append(OTHER)
    del shrunk[2:]
    assert are_same(grown, shrunk)
    shrunk.pop()
    assert not are_same(grown, shrunk)
    grown.clear()
    assert are_same(grown, [])


def test_what_is_compared_lives_on_as_before():
    some, others = [*MANY, ONE], [*MANY, ONE]
    counts = [sys.getrefcount(each) for each in some]
    assert are_same(some, others)
    assert [sys.getrefcount(each) for each in some] == counts


def test_memory_is_left_alone_where_lists_are_laid_out_otherwise(monkeypatch):
    """In a debug build there is more before the length."""
    assert identities.find_comparison() is not None

    class Debug(ctypes.Structure):
        _fields_ = (("more", ctypes.c_void_p), *identities.ListLayout._fields_)

    class Swapped(ctypes.Structure):
        """As large as a list, with something else where its length is."""

        _fields_ = tuple(identities.ListLayout._fields_[at] for at in (0, 2, 1, 3, 4))

    for layout in (Debug, Swapped):
        monkeypatch.setattr(identities, "ListLayout", layout)
        assert identities.find_comparison() is None


def test_memory_is_left_alone_where_nobody_may_look_at_it(monkeypatch):
    monkeypatch.setattr(ctypes, "PyDLL", lambda name: 1 / 0)
    assert identities.find_comparison() is None
