"""Where a tensor is cut once it has another shape: by the numbers alone, tried against tensors."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fusioncache.distributed.cuts import follow_reshape, take_part


@pytest.mark.parametrize(
    ("old", "new", "dim", "ranks", "found"),
    [
        ((2, 8, 16), (2, 8, 4, 4), 2, 2, 2),  # features into heads
        ((2, 8, 16), (2, 8, 4, 4), 2, 3, None),  # which three ranks cannot share
        ((2, 4, 2, 8, 3), (2, 8, 8, 3), 1, 2, 1),  # groups of heads into heads
        ((2, 8, 4, 4), (2, 8, 16), 2, 4, 2),  # heads into features
        ((2, 8, 4, 4), (16, 16), 2, 2, 1),  # rows put together in front of it
        ((2, 8, 4, 4), (2, 8, 16), 3, 2, None),  # what lies behind heads, into features
        ((2, 8, 16), (16, 16), 1, 2, None),  # rows of each of several sequences
        ((8, 16), (1, 8, 1, 16), 0, 2, 1),
        ((1, 8, 16), (8, 16), 1, 4, 0),
        ((2, 1, 16), (2, 16), 1, 1, 1),  # one rank alone shares everything
    ],
)
def test_a_cut_follows_a_change_of_shape(old, new, dim, ranks, found):
    assert follow_reshape(old, new, dim, ranks) == found


FACTORS = st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4)


@given(FACTORS, st.integers(0, 3), st.sampled_from([2, 3]), st.data())
def test_where_a_cut_follows_the_part_of_what_has_another_shape_is_the_part_in_that_shape(old, dim, ranks, data):
    dim = dim % len(old)
    old[dim] *= ranks
    elements = torch.arange(torch.Size(old).numel())
    split = data.draw(
        st.sampled_from([size for size in range(1, elements.numel() + 1) if elements.numel() % size == 0])
    )
    new = data.draw(st.sampled_from([(split, elements.numel() // split), (elements.numel(),), (1, *old), tuple(old)]))
    found = follow_reshape(old, new, dim, ranks)
    if found is None:
        return
    whole = elements.reshape(old)
    for rank in range(ranks):
        part = whole.chunk(ranks, dim)[rank]
        assert torch.equal(part.reshape(take_part(new, found, ranks)), elements.reshape(new).chunk(ranks, found)[rank])
