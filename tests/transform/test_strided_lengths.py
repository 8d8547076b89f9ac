"""A tensor that is not contiguous has lengths as others have: slices of a batch, transposed and repeated ones."""

import pytest
import thunder
import torch
from stored_programs import compile_anew
from torch.utils._pytree import tree_leaves

LENGTHS = (10, 14, 18)
WHOLE = torch.linspace(0, 9, 300)
PARTS = {
    "parts of one tensor may begin anywhere": (
        torch.sin,
        [WHOLE[first : first + length] for first, length in ((5, 10), (70, 14), (31, 18), (0, 22), (32, 18))],
        (2, 2),
    ),
    "a part that is written to leaves the rest alone": (
        lambda x: x.add_(1) * 2,
        [torch.zeros(3, length + 2)[:, 1:-1] for length in LENGTHS],
        (2, 1),
    ),
    # Thunder's prologue sees no strides, so that it is asked where no program is there for the sizes.
    "each order of dimensions has a program of its own": (
        torch.sin,
        [*(torch.ones(3, length) for length in LENGTHS), torch.ones(21, 3).T, torch.ones(22, 1).expand(22, 3).T],
        (4, 1),
    ),
}
"""Programs, arguments of one call after the other, and how many programs are traced and filled in."""
LOOKS = {
    "asks whether it is contiguous": lambda x: (x * 2, x.is_contiguous()),
    "asks for the order of its dimensions": lambda x: x * x.dim_order()[0],
    "makes it contiguous": lambda x: x.contiguous() * 2,
    "makes it contiguous behind": lambda x: (x.transpose(0, 1).contiguous().cos(), x.contiguous()),
    "makes it flat": lambda x: x.reshape(-1).cos(),
    "returns it": lambda x: (x, x.T, x[1:]),
    "copies it": lambda x: x.clone(),
}


def call(function, part):
    """Returns the results, and then the memory that the argument is a part of, of which others have copies."""
    whole = part.untyped_storage().clone()
    results = function(torch.empty(0).set_(whole, part.storage_offset(), part.shape, part.stride()))
    return [*tree_leaves(results), torch.empty(0).set_(whole)]


def assert_alike(function, other, part):
    for left, right in zip(call(function, part), call(other, part), strict=True):
        assert torch.equal(left, right) if isinstance(left, torch.Tensor) else left == right


@pytest.mark.parametrize(("compute", "parts", "expected"), PARTS.values(), ids=PARTS)
def test_layouts_that_have_a_program(compute, parts, expected, tmp_path):
    compiled, transform = compile_anew(compute, tmp_path)
    for part in parts:
        assert_alike(compute, compiled, part)
    assert (thunder.cache_misses(compiled), transform.stats().programs_filled) == expected


@pytest.mark.parametrize("compute", LOOKS.values(), ids=LOOKS)
def test_what_depends_on_a_layout_is_what_it_is_with_thunder(compute, tmp_path):
    own, (compiled, _) = thunder.jit(compute), compile_anew(compute, tmp_path)
    for length in (*LENGTHS, 14):
        for rows in (torch.randn(length, 3).T, torch.randn(3, length + 1)[:, 1:], torch.randn(3, length)):
            assert_alike(own, compiled, rows)
