"""A fingerprint notices each change of the tables that it was taken of, and calls nothing of what they hold."""

import pytest

from fusioncache.accelerators.programs.definitions import Fingerprint


def test_an_item_that_went_over_to_the_next_table_is_noticed():
    """All of them together hold the same, in the same order."""
    for first, second in (([1, 2], [3]), ([1], [])):
        fingerprint = Fingerprint([first, second])
        assert fingerprint.holds()
        second.insert(0, first.pop())
        assert not fingerprint.holds()


@pytest.mark.parametrize("after", [[], [1, 1], [1.0], [True], [[1]]])
def test_only_the_very_same_items_are_the_same(after):
    table = [1]
    fingerprint = Fingerprint([table])
    assert fingerprint.holds()
    table[:] = after
    assert not fingerprint.holds()
    table[:] = [1]
    assert fingerprint.holds()


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
    fingerprint = Fingerprint([values])
    assert fingerprint.holds()
    values.reverse()
    assert not fingerprint.holds()
