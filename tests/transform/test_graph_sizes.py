"""Programs of Dynamo's graphs with symbols are filled in from the third length on."""

from itertools import pairwise

import pytest
import thunder
import torch
from behind_dynamo import compile_behind_dynamo

pytestmark = pytest.mark.usefixtures("eager_regions")

WIDTH = 12
WEIGHT = torch.nn.Parameter(torch.randn(WIDTH, WIDTH) / 4)


def flattens(x):
    """Rows and lengths, and numbers that are made of both."""
    rows, length = x.shape[:2]
    y = (x.reshape(rows * length, WIDTH) @ WEIGHT).view(rows, length, WIDTH) / (rows + length)
    return y + y.mean(1, keepdim=True) + torch.arange(length)[:, None]


def picks(x):
    """Some of the rows, whose number no argument tells, as an expert does."""
    return torch.tanh(x[x[:, :, 0] > 0] @ WEIGHT) * 2


def make(length, rows=2):
    generator = torch.Generator().manual_seed(length)
    return torch.randn(rows, length, WIDTH, generator=generator, requires_grad=True)


def train(compiled, x):
    """Returns the result and the gradients."""
    result = compiled(x)
    return [result, *torch.autograd.grad(result.square().sum(), [x, WEIGHT])]


def count_traces(compiled):
    functions = [each for info in compiled._backend.subgraph_infos for each in info.thunder_compiled_fns]
    return sum(thunder.compile_stats(each).cache_misses for each in functions)


def run(compiled, model, sizes):
    """Returns how many programs are derived in each call, and checks what these return."""
    counted = [count_traces(compiled)]
    for each in sizes:
        torch.testing.assert_close(train(compiled, make(*each)), train(model, make(*each)))
        counted.append(count_traces(compiled))
    return [after - before for before, after in pairwise(counted)]


def test_rows_and_lengths_may_both_vary(tmp_path):
    compiled, transform = compile_behind_dynamo(flattens, store=tmp_path, dynamic=True)
    assert run(compiled, flattens, ((24, 2), (36, 3), (25, 2), (7, 7), (9, 4))) == [1, 1, 0, 1, 0]
    # A pass asks whether there are as many rows as the length. It does where the one length is tried as well.
    assert all("args[1][0]" in reason for reason in transform.stats().passes_repeated)
    assert len(transform.stats().passes_repeated) == 2


def test_a_number_of_tokens_that_no_argument_tells(tmp_path):
    """What is computed before and behind the choice are graphs of their own."""
    compiled, transform = compile_behind_dynamo(picks, store=tmp_path)
    traced = run(compiled, picks, ((8,), (13,), (9,), (30,), (21,)))
    assert all(traced[:2])
    assert traced[3:] == [0, 0]
    assert not transform.stats().programs_refused
