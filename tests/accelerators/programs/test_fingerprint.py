"""A fingerprint notices each change of what it was taken of, and calls nothing of that."""

import types
from typing import Any

import pytest

from fusioncache.accelerators.programs.fingerprint import Fingerprint
from fusioncache.accelerators.programs.introspection import are_same


def move_last(first: list[int], second: list[int]) -> None:
    second.insert(0, first.pop())


def move_item(first: dict[str, int], second: dict[str, int]) -> None:
    key, value = first.popitem()
    items = dict(second)
    second.clear()
    second.update({key: value}, **items)


def move_content(first: types.CellType, second: types.CellType) -> None:
    second.cell_contents = first.cell_contents
    del first.cell_contents


@pytest.mark.parametrize(
    ("make", "move"),
    [
        (lambda: ([1, 2], [3]), move_last),
        (lambda: ([1], []), move_last),
        (lambda: ({"a": 1, "b": 2}, {"c": 3}), move_item),
        (lambda: ({"a": 1}, {}), move_item),
        (lambda: (types.CellType(1), types.CellType()), move_content),
    ],
)
def test_what_went_over_to_its_neighbour_is_noticed(make, move):
    """All of them together consist of the same, in the same order."""
    first, second = make()
    fingerprint = Fingerprint([first, second])
    assert fingerprint.holds()
    move(first, second)
    assert not fingerprint.holds()


def test_the_order_of_values_is_not_that_in_which_a_table_keeps_them():
    class Point:
        def __init__(self) -> None:
            self.a, self.b = 1, 2

    table = vars(Point())  # which shares its keys with those of other points
    table["a"] = table.pop("a")
    fingerprint = Fingerprint([table])
    assert fingerprint.holds()
    table["c"] = 3
    del table["c"]
    table.update(a=2, b=1)
    assert not fingerprint.holds()


def test_a_cell_that_was_empty_is_noticed():
    cell = types.CellType()
    fingerprint = Fingerprint([[1], cell])
    assert fingerprint.holds()
    cell.cell_contents = 1
    assert not fingerprint.holds()


def test_the_order_of_a_table_is_a_part_of_it():
    table = {"a": 1, "b": 2}
    fingerprint = Fingerprint([table])
    assert fingerprint.holds()
    table["a"] = table.pop("a")
    assert not fingerprint.holds()


def test_the_keys_of_a_table_are_a_part_of_it():
    table = {"a": 1, "b": 2}
    fingerprint = Fingerprint([table])
    table["c"] = table.pop("b")
    assert not fingerprint.holds()


def test_keys_and_values_are_told_apart():
    """Which are so many, and in this order, in a table that has other keys."""
    for first, second in (({1: 2, 3: 4}, {1: 3, 2: 4}), ({1: 2}, {2: 1}), ({1: 1, 2: 2}, {1: 2, 2: 1})):
        table = dict(first)
        fingerprint = Fingerprint([table])
        assert fingerprint.holds()
        table.clear()
        table.update(second)
        assert not fingerprint.holds()
        table.clear()
        table.update(first)
        assert fingerprint.holds()


def test_a_function_that_refers_to_itself_is_looked_at_once():
    def function() -> Any:
        return function

    function.table = {}  # type: ignore[attr-defined]
    function.table["self"] = function.table  # type: ignore[attr-defined]
    fingerprint = Fingerprint([function, function.table])  # type: ignore[attr-defined]
    assert fingerprint.holds()
    function.mark = 1  # type: ignore[attr-defined]
    assert not fingerprint.holds()


def test_what_else_is_read_is_compared_as_well():
    found = [object()]
    fingerprint = Fingerprint(read=lambda: found)
    assert fingerprint.holds()
    found.append(found[0])
    assert not fingerprint.holds()


def test_what_cannot_be_read_any_more_has_changed():
    found = [object()]
    fingerprint = Fingerprint(read=lambda: [found[0]])
    assert fingerprint.holds()
    found.clear()
    assert not fingerprint.holds()


class Stranger:
    """An object that raises whatever it is asked."""

    def _refuse(self, *given: object) -> bool:
        raise AssertionError("was asked")

    __eq__ = __ne__ = __bool__ = __len__ = __iter__ = __hash__ = __getattr__ = _refuse  # type: ignore[assignment]


def test_nothing_of_a_value_is_called():
    values = [Stranger(), Stranger()]
    fingerprint = Fingerprint([*values, values, {"a": values[0]}])
    assert fingerprint.holds()
    values.reverse()
    assert not fingerprint.holds()


def test_only_the_very_same_objects_in_the_same_order_are_the_same():
    one, other = Stranger(), Stranger()
    assert are_same([], ()) and are_same([one, other, one], (one, other, one))
    for some, others in (([one], [other]), ([one, other], [other, one]), ([one], [one, one]), ([1.0], [float("1")])):
        assert not are_same(some, others) and not are_same(others, some)
