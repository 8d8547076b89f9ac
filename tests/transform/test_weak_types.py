"""What Thunder takes for int8 because it is made of bits and an integer, and torch for int64, is what torch has."""

import pytest
import torch
from models import compile_with, find_all_fused

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

    compiled, results, gradients = compile_with(program, backend)[0], [], []
    for function in (compiled, program):
        x = torch.linspace(-1, 1, 4).requires_grad_()
        results.append(function(torch.arange(4), x))
        sum(result.sum() for result in results[-1] if result.requires_grad).backward()
        gradients.append(x.grad)
    torch.testing.assert_close(*results)
    torch.testing.assert_close(*gradients)
    assert find_all_fused(compiled)


def test_what_is_asked_to_be_int8_is_fused():
    def program(m):
        return m.to(torch.int8) * 100 + 100

    compiled, m = compile_with(program)[0], torch.tensor([True, False])
    torch.testing.assert_close(compiled(m), program(m))
    assert len(find_all_fused(compiled)) == 1
