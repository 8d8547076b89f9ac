"""What is read in memory tells each change, and where nobody knows what it would tell, nothing is read."""

import functools
import gc
import types
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from fusioncache.program import fields
from fusioncache.program.fields import FieldLayout, Fields, find_layout, find_layouts, split_readable


class Slotted:
    __slots__ = ("one", "other")


class Derived(Slotted):
    __slots__ = ("third",)


class OfTwo(Derived):
    __slots__ = ()


class Other(Slotted):
    __slots__ = ("third",)


def make_function() -> types.FunctionType:
    content: Any = 1

    def function(argument: int = 1, *, name: int = 2) -> object:
        return content, argument, name

    return function


def make_slotted(kind: type = Slotted) -> Any:
    made = kind()
    made.one = made.other = 1
    return made


class WithAttributes:
    pass


class SlotsAndAttributes(WithAttributes):
    __slots__ = ("one",)


def make_asked(kind: type = WithAttributes) -> Any:
    made = kind()
    vars(made)["one"] = 1
    return made


class OtherWithAttributes:
    pass


def make_table() -> dict[str, object]:
    return {"a": 1, "b": 2}


def move_first(table: dict[str, object]) -> None:
    table["a"] = table.pop("a")


def update_itself(table: dict[str, object]) -> None:
    table |= {"a": 2}


CHANGES: list[tuple[Callable[[], Any], Callable[[Any], object]]] = [
    (make_function, lambda each: setattr(each, "__code__", (lambda: each).__code__)),
    (make_function, lambda each: setattr(each, "__defaults__", (2,))),
    (make_function, lambda each: setattr(each, "__kwdefaults__", {"name": 2})),
    (make_function, lambda each: setattr(each, "__name__", "other")),
    (make_function, lambda each: setattr(each, "__qualname__", "other")),
    (make_function, lambda each: setattr(each, "__module__", "other")),
    (make_function, lambda each: setattr(each, "__doc__", "other")),
    (make_function, lambda each: setattr(each, "__annotations__", {})),
    (make_function, lambda each: setattr(each, "__type_params__", (int,))),
    (make_function, lambda each: setattr(each, "__dict__", {})),
    (lambda: [].append, lambda each: setattr(each, "__module__", "other")),
    (lambda: types.CellType(1), lambda each: setattr(each, "cell_contents", 2)),
    (lambda: types.CellType(1), lambda each: delattr(each, "cell_contents")),
    (types.CellType, lambda each: setattr(each, "cell_contents", None)),
    (make_table, lambda each: each.update(a=2)),
    (make_table, lambda each: each.update({"c": 3})),
    (make_table, lambda each: each.__setitem__("b", True)),
    (make_table, lambda each: each.setdefault("c")),
    (make_table, lambda each: each.pop("a")),
    (make_table, lambda each: each.popitem()),
    (make_table, lambda each: each.clear()),
    (make_table, move_first),
    (make_table, update_itself),
    (dict, lambda each: each.update(a=1)),
    (dict, lambda each: each.update({1: 1})),
    (make_slotted, lambda each: setattr(each, "one", 2)),
    (make_slotted, lambda each: delattr(each, "other")),
    (lambda: make_slotted(Derived), lambda each: setattr(each, "third", 1)),
    (lambda: make_slotted(OfTwo), lambda each: setattr(each, "other", 2)),
    (lambda: make_slotted(Derived), lambda each: setattr(each, "__class__", Other)),
    (make_asked, lambda each: setattr(each, "__dict__", {"one": 1})),
    (make_asked, lambda each: setattr(each, "__class__", OtherWithAttributes)),
    (lambda: make_asked(SlotsAndAttributes), lambda each: SlotsAndAttributes.one.__set__(each, 2)),  # type: ignore[attr-defined]
]


def refuse() -> bool:
    raise AssertionError("was asked")


@pytest.mark.parametrize(("make", "change"), CHANGES)
def test_each_change_is_seen_among_many(make, change):
    """Of an object alone, and of one of a thousand."""
    for before, behind in ((0, 0), (500, 499)):
        objects = [make() for _ in range(before + 1 + behind)]
        watched = Fields(objects)
        watched.confirm()
        assert watched.hold(refuse) and watched.hold(refuse)
        change(objects[before])
        assert not watched.hold(lambda: False) and not watched.hold(lambda: False)


def test_what_is_as_it_was_again_is_asked_once():
    table, function = make_table(), make_function()
    watched, asked = Fields([table, function]), list[bool]()

    def ask() -> bool:
        asked.append(True)
        return True

    table["a"] = 2
    table["a"] = 1
    assert watched.hold(ask) and watched.hold(ask) and asked == [True]
    reference = weakref.ref(function)
    for _ in range(1000):
        function()
    assert watched.hold(refuse) and reference() is function


def test_what_changes_while_it_is_asked_is_asked_again():
    table = make_table()
    watched = Fields([table])
    table["a"] = 2
    assert watched.hold(lambda: table.update(a=3) is None)
    assert not watched.hold(lambda: False)


def test_what_changed_while_it_was_looked_at_is_asked_each_time():
    """What was in the fields is not kept alive then, and another object may lie there later."""
    table = make_table()
    watched = Fields([table])
    table["a"] = 2
    watched.confirm()
    asked: list[bool] = []
    assert all(watched.hold(lambda: asked.append(True) is None) for _ in range(3))
    assert len(asked) == 3


class WithReference:
    __slots__ = ("__weakref__", "one")


class Number(int):
    __slots__ = ()


class NumberWithAttributes(int):
    pass


class Borrowing:
    __slots__ = ("one",)
    borrowed = Slotted.one  # type: ignore[attr-defined]


class Removing:
    __slots__ = ("one", "other")


del Removing.other  # type: ignore[attr-defined]


class Hostile(type):
    __hash__ = None  # type: ignore[assignment]

    def __eq__(cls, other: object) -> bool:
        raise AssertionError("was asked")


class OfHostile(metaclass=Hostile):
    __slots__ = ("one",)


def test_only_objects_that_are_nothing_but_slots_and_a_dictionary_are_read():
    for kind, slots in ((Slotted, 2), (Derived, 3), (OfTwo, 3), (OfHostile, 1), (WithReference, 1), (Borrowing, 1)):
        assert find_layout(kind) == FieldLayout(2 + slots, (1, *range(2, 2 + slots)))
    assert find_layout(WithAttributes) == FieldLayout(2, (1, -3))
    assert find_layout(SlotsAndAttributes) == FieldLayout(3, (1, 2, -3))
    for some in (each for each in fields.LAYOUTS if each.__name__ in ("_Pair", "_Open")):
        assert fields.find_attributes(some) == fields.LAYOUTS[some]
    for kind in (
        Number,
        NumberWithAttributes,
        Removing,
        OrderedDict,
        defaultdict,
        object,
        list,
        type,
        functools.partial,
        type("Empty", (), {"__slots__": ()}),
    ):
        assert find_layout(kind) is None


def test_an_object_is_read_once_somebody_asked_for_its_dictionary():
    new, empty, asked = WithAttributes(), WithAttributes(), make_asked()
    new.one = 1  # type: ignore[attr-defined]
    table = make_table()
    assert split_readable([new, asked, table, empty, [1]]) == ([asked, table], [new, empty, [1]])
    assert vars(new) == {"one": 1} and vars(empty) == {}
    assert split_readable([new, asked, empty]) == ([new, asked, empty], [])


def test_what_is_in_a_dictionary_is_seen_in_the_dictionary():
    asked = make_asked()
    alone, beside = Fields([asked]), Fields([asked, vars(asked)])
    asked.one = 2
    assert alone.hold(refuse) and not beside.hold(lambda: False)


def test_no_cycle_is_left_behind():
    tables = [make_table() for _ in range(100)]
    gc.freeze()  # what other tests left is not looked at
    try:
        for each in tables:
            Fields([each, tables[0]]).confirm()
        assert gc.collect() == 0
    finally:
        gc.unfreeze()


def test_nothing_is_read_where_one_of_them_is_not_known():
    asked: list[bool] = []
    watched = Fields([make_table(), [1]])
    watched.confirm()
    assert all(watched.hold(lambda: asked.append(True) is None) for _ in range(3))
    assert len(asked) == 3


@pytest.mark.parametrize("moved", ["another size", "its count", "behind it", "elsewhere"])
@pytest.mark.parametrize("kind", fields.LAYOUTS, ids=lambda kind: kind.__name__)
def test_nothing_is_read_where_objects_are_laid_out_otherwise(monkeypatch, kind, moved):
    assert find_layouts().keys() == set(map(id, fields.LAYOUTS)) == fields.KNOWN.keys()
    size, known = fields.LAYOUTS[kind].size, fields.LAYOUTS[kind].fields
    other = {
        "another size": FieldLayout(size + 1, known),
        "its count": FieldLayout(size, (0, *known)),
        "behind it": FieldLayout(size, (*known, size)),
        "elsewhere": FieldLayout(size, (1,)),  # the class, which is what it was while all else changes
    }
    monkeypatch.setattr(fields, "LAYOUTS", {**fields.LAYOUTS, kind: other[moved]})
    assert find_layouts() == {}


def test_nothing_is_read_where_a_change_would_not_be_seen(monkeypatch):
    """Of a dictionary without its version it is how much is in it, which stays what it is with another value."""
    monkeypatch.setattr(fields, "LAYOUTS", {**fields.LAYOUTS, dict: FieldLayout(6, (2,))})
    assert find_layouts() == {}


def test_nothing_is_read_in_another_python_or_where_nobody_may_look(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(fields.sys, "version_info", (3, 13, 0))
        assert find_layouts() == {}
    with monkeypatch.context() as patch:
        patch.setattr(fields, "Words", lambda places: 1 / 0)
        assert find_layouts() == {}
        asked: list[bool] = []
        assert Fields([make_table()]).hold(lambda: asked.append(True) is None) and asked == [True]
    monkeypatch.setattr(fields, "KNOWN", {})
    assert find_layout(dict) is find_layout(Slotted) is None
