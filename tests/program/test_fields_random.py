"""Whatever is done to objects, who reads their fields says what Python's collector says."""

import random
import types
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusioncache.program import fields
from fusioncache.program.snapshot import Snapshot


class Slotted:
    __slots__ = ("one", "other")


class Other:
    __slots__ = ("one", "other")


class Open:
    """Has a dictionary, as soon as somebody asks for it."""

    def __init__(self, one: object = 1) -> None:
        self.one = one


class OtherOpen(Open):
    pass


def make_function(content: Any) -> types.FunctionType:
    def function(argument: Any = content, *, name: Any = 1) -> Any:
        return content, argument, name

    return function


def make_objects() -> list[Any]:
    """Returns objects that refer to each other, and what is made of all of them."""
    functions = [make_function(each) for each in (1, "text", [])]
    slotted = Slotted()
    slotted.one = functions[0]
    opened = [Open(), Open(functions[1]), OtherOpen()]
    tables = [{"a": 1, "b": functions[1]}, {}, vars(opened[0]), vars(opened[2])]
    return [*functions, slotted, *tables, types.CellType(1), types.CellType(), [1, 2], Other(), *opened]


def change(each: Any, draw: random.Random, values: list[Any]) -> None:
    """Does one thing to an object, which may leave it as it was."""
    value = draw.choice(values)
    match each:
        case types.FunctionType():
            name = draw.choice(["__defaults__", "__kwdefaults__", "__code__", "mark", "__name__", "__module__"])
            new = {
                "__defaults__": (value,),
                "__kwdefaults__": {"name": value},
                "__code__": draw.choice([make_function(0).__code__, each.__code__]),
                "__name__": str(value)[:3],
            }.get(name, value)
            if name == "mark" and draw.random() < 0.5:
                vars(each).pop("mark", None)
            else:
                setattr(each, name, new)
        case types.CellType():
            if draw.random() < 0.3:
                with suppress(ValueError):  # it is empty
                    del each.cell_contents
            else:
                each.cell_contents = value
        case dict():
            key = draw.choice(["a", "b", "c", 1])
            if draw.random() < 0.4:
                each.pop(key, None)
            else:
                each[key] = value
        case list():
            each[:] = draw.choice([[1, 2], [2, 1], [1], [1, 2, value]])
        case Slotted() | Other():
            if draw.random() < 0.2:
                each.__class__ = draw.choice([Slotted, Other])
            setattr(each, draw.choice(["one", "other"]), value)
        case Open():
            what = draw.choice(["one", "other", "__dict__", "__class__", "look"])
            if what == "look":
                vars(each)
            else:
                new = {"__dict__": {"one": value}, "__class__": draw.choice([Open, OtherOpen])}
                setattr(each, what, new.get(what, value))


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32), steps=st.integers(1, 12))
def test_fields_and_the_collector_tell_the_same(seed: int, steps: int) -> None:
    draw, objects = random.Random(seed), make_objects()
    values = [None, 1, 2, "text", objects[0], *objects[4:6]]
    for _ in range(steps):
        read = Snapshot(objects)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fields, "KNOWN", {})
            asked = Snapshot(objects)
        for _ in range(2):  # the second one may undo the first
            change(draw.choice(objects), draw, values)
            assert read.holds() == asked.holds() == read.holds()
