"""What Thunder takes for int8 because it is made of bits and an integer, and torch for int64, is what torch has."""

import pytest
import thunder
import torch
from models import find_all_fused

import fusioncache

PROGRAMS = {
    "a product": lambda m, x: m * 200,
    "a sum": lambda m, x: (m * 1000).sum(),
    "computed with": lambda m, x: torch.abs(m * 3 - 300) + 1,
    "as numbers": lambda m, x: (m + 200).float() * 2,
    "a mask": lambda m, x: torch.tanh(x) + (~m) * -10000,
    "chosen": lambda m, x: torch.where(m, m * 300, 5) * x,
    "its mean": lambda m, x: (m * 500).float().mean() * torch.exp(x),
    "of two": lambda m, x: (m * 7 + (~m) * 400) * x.abs(),
}


CASES = [*((name, "eager") for name in PROGRAMS), ("of two", "inductor")]


@pytest.mark.parametrize(("name", "backend"), CASES)
def test_bits_and_integers_give_what_torch_gives(name, backend):
    def program(ids, x):
        return PROGRAMS[name](ids != 0, x), torch.sin(x) * 2

    ids = torch.tensor([0, 1, 2, 3])
    transform = fusioncache.FusionCache(cache=fusioncache.Cache(record=False, store=False), backend=backend)
    compiled = thunder.jit(program, executors=fusioncache.executors(), transforms=[transform])
    x, other = (torch.linspace(-1, 1, 4).requires_grad_() for _ in range(2))
    found, expected = compiled(ids, x), program(ids, other)
    torch.testing.assert_close(found, expected)
    for results in (found, expected):
        sum(result.sum() for result in results if result.requires_grad).backward()
    torch.testing.assert_close(x.grad, other.grad)
    assert find_all_fused(compiled)


def test_what_is_asked_to_be_int8_is_fused():
    def program(m):
        return m.to(torch.int8) * 100 + 100

    transform = fusioncache.FusionCache(cache=fusioncache.Cache(record=False, store=False), backend="eager")
    compiled = thunder.jit(program, executors=fusioncache.executors(), transforms=[transform])
    m = torch.tensor([True, False])
    torch.testing.assert_close(compiled(m), program(m))
    assert len(find_all_fused(compiled)) == 1
