"""Orders of values: picking, undoing it, and noticing that nothing changes."""

import pytest

from fusioncache.ir.graph import inverse, pick, picker


@pytest.mark.parametrize("positions", [(), (0,), (2,), (0, 1, 2), (2, 0, 1), (1, 1, 0)])
def test_a_picker_picks_what_pick_does(positions):
    take = picker(positions, 3)
    assert pick("abc", positions) == (tuple("abc") if take is None else tuple(take("abc")))
    assert (take is None) == (positions == (0, 1, 2))


@pytest.mark.parametrize(("positions", "places"), [((2, 0, 3, 1), (1, 3, 0, 2)), ((4, 1, 4, 2), (1, 3, 0)), ((), ())])
def test_the_inverse_finds_first_indices_and_leaves_out_what_was_not_picked(positions, places):
    assert inverse(positions) == places
