"""A tensor that is not contiguous has lengths as others have: slices of a batch, transposed and repeated ones."""

import pytest
import thunder
import torch
from stored_programs import compile_anew

from fusioncache.accelerators.programs.containers import write_layout


def test_parts_of_one_tensor_may_begin_anywhere(tmp_path):
    whole = torch.randn(300, generator=torch.Generator().manual_seed(0))
    compiled, transform = compile_anew(torch.sin, tmp_path)
    for first, length in ((5, 10), (70, 14), (31, 18), (0, 22), (32, 18)):
        part = whole[first : first + length]
        assert part.is_contiguous() and torch.equal(compiled(part), part.sin())
    assert thunder.cache_misses(compiled) == 2 and transform.stats().programs_filled == 2


def test_a_part_that_is_written_to_leaves_the_rest_alone(tmp_path):
    compiled, transform = compile_anew(lambda x: x.add_(1) * 2, tmp_path)
    for length in (10, 14, 18):
        whole = torch.zeros(3, length + 2)
        assert torch.equal(compiled(whole[:, 1:-1]), torch.full((3, length), 2.0))
        expected = torch.zeros(3, length + 2)
        expected[:, 1:-1] = 1
        assert torch.equal(whole, expected)
    assert transform.stats().programs_filled == 1


LOOKS = {
    "asks whether it is contiguous": lambda x: (x * 2, x.is_contiguous()),
    "asks for the order of its dimensions": lambda x: x * x.dim_order()[0],
    "makes it contiguous": lambda x: x.contiguous() * 2,
    "makes it contiguous behind": lambda x: (x.transpose(0, 1).contiguous().cos(), x.contiguous()),
    "makes it flat": lambda x: x.reshape(-1).cos(),
    "returns it": lambda x: (x, x.T, x[1:]),
    "copies it": lambda x: x.clone(),
}


@pytest.mark.parametrize("compute", LOOKS.values(), ids=LOOKS)
def test_what_depends_on_a_layout_is_what_it_is_with_thunder(compute, tmp_path):
    own, (compiled, _) = thunder.jit(compute), compile_anew(compute, tmp_path)
    for length in (10, 14, 18, 14):
        for rows in (torch.randn(length, 3).T, torch.randn(3, length + 1)[:, 1:], torch.randn(3, length)):
            results = [function(rows) for function in (own, compiled)]
            one, other = (each if isinstance(each, tuple) else (each,) for each in results)
            for left, right in zip(one, other, strict=True):
                assert torch.equal(left, right) if isinstance(left, torch.Tensor) else left == right


def test_each_order_of_dimensions_has_a_program_of_its_own(tmp_path):
    """Thunder's prologue sees no strides, so that it is asked where no program is there for the sizes."""
    compiled, transform = compile_anew(torch.sin, tmp_path)
    for length in (10, 14, 18):
        compiled(torch.ones(3, length))
    assert thunder.cache_misses(compiled) == 2
    compiled(torch.ones(21, 3).T)
    assert thunder.cache_misses(compiled) == 3
    compiled(torch.ones(22, 1).expand(22, 3).T)
    assert thunder.cache_misses(compiled) == 4 and transform.stats().programs_filled == 1


def test_a_layout_is_written_whole():
    x = torch.ones(4, 6)
    assert [write_layout(each) for each in (x, x.T, x[1:, 2:], x[0], x[0, 0].expand(3))] == [
        "(4, 6) (6, 1)",
        "(6, 4) (1, 6)",
        "(3, 4) (6, 1) offset 8",
        "(6,) (1,)",
        "(3,) (0,)",
    ]
