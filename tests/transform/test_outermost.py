"""Which dimension is outermost in memory, and what computes each element by itself: both for sure, or not at all."""

from types import SimpleNamespace

import pytest
import thunder
import thunder.torch as ltorch
import torch

from fusioncache.accelerators.steps.outermost import ONE_ROW, computes_each_by_itself, find_outermost


@pytest.mark.parametrize(
    ("function", "alone"), [("sin", True), ("cumsum", False), ("rand_like", False), ("topk", False), ("argmax", False)]
)
def test_elements_by_themselves(function, alone):
    def call(x):
        return getattr(ltorch, function)(x, *{"cumsum": (0,), "topk": (2,)}.get(function, ()))

    trace = thunder.trace()(call, torch.ones(4))
    region = SimpleNamespace(subsymbols=[each for each in trace.bound_symbols if each.sym.name == function])
    assert region.subsymbols and computes_each_by_itself(region) is alone


def swap(x):
    return ltorch.transpose(x, 0, 1)


OUTERMOST = {
    "a product": (lambda x: x @ x, 0),
    "what is given": (lambda x: x + 1, None),
    "one row of what is given": (lambda x: x[:1] + 1, ONE_ROW),
    "other dimensions swapped": (lambda x: ltorch.transpose(x @ x, 1, 2), 0),
    "rows swapped": (lambda x: ltorch.transpose(x @ x, 0, 1), 1),
    "rows swapped twice": (lambda x: ltorch.transpose(ltorch.transpose(x @ x, 0, 1), 0, 2), 1),
    "rows swapped, and a part of another dimension": (lambda x: ltorch.transpose(x @ x, 0, 1)[1], 0),
    "one row swapped": (lambda x: ltorch.transpose(x[:1] + 1, 0, 1), None),
    "rows taken apart": (lambda x: ltorch.reshape(x @ x, (2, 2, 4, 4)), 0),
    "swapped rows taken apart": (lambda x: ltorch.reshape(ltorch.transpose(x @ x, 0, 1), (2, 2, 4, 4)), None),
    "one row taken apart": (lambda x: ltorch.reshape((x @ x)[:1], (4, 4)), None),
    "one row left out": (lambda x: ltorch.squeeze((x @ x)[:1], 0), None),
    "a part of each": (lambda x: (x @ x)[:, 1:, ::2], 0),
    "with what is given": (lambda x: x @ x + x, None),
    "with a table": (lambda x: x @ x + ltorch.sin(x[0]), 0),
    "with swapped rows": (lambda x: x @ x + ltorch.transpose(x @ x, 0, 1), None),
    "swapped rows with a table": (lambda x: ltorch.transpose(x @ x, 0, 1) + ltorch.sin(x[0]), None),
    "joined": (lambda x: ltorch.cat((x @ x, x @ x), -1), 0),
    "joined with what is given": (lambda x: ltorch.cat((x @ x, x), -1), None),
    "swapped rows joined": (lambda x: ltorch.cat((swap(x @ x), swap(x @ x)), -1), None),
    "swapped rows padded": (lambda x: ltorch.pad(swap(x @ x), (0, 1)), None),
    "rows padded": (lambda x: ltorch.pad(x @ x, (0, 1)), 0),
    "repeated behind rows": (lambda x: ltorch.expand((x @ x)[:, :1], (4, 3, 4)), 0),
    "repeated before rows": (lambda x: ltorch.expand(ltorch.unsqueeze(x @ x, 0), (3, 4, 4, 4)), ONE_ROW),
    "repeated before swapped rows": (lambda x: ltorch.expand(swap(x @ x)[:1], (3, 4, 4)), None),
    "repeated between swapped rows": (lambda x: ltorch.expand(ltorch.unsqueeze(swap(x @ x), 1), (4, 3, 4, 4)), None),
    "one row of a product, swapped": (lambda x: swap(x[:1] @ x[:1]), None),
    "one of swapped rows": (lambda x: swap(x @ x)[:, :1], None),
    "one of swapped rows, repeated": (lambda x: ltorch.expand(swap(x @ x)[:, :1], (4, 3, 4)), None),
    "one row before rows, swapped": (lambda x: swap(ltorch.reshape(x @ x, (1, 4, 4, 4))), None),
    "converted": (lambda x: ltorch.neg((x @ x).to(torch.float64)), 0),
    "of an operation that says nothing": (lambda x: ltorch.cumsum(x @ x, 0), None),
    "one number": (lambda x: ltorch.full((), 1.0, device="cpu", dtype=torch.float32), ONE_ROW),
    "of no tensor": (lambda x: ltorch.full((4, 4), 1.0, device="cpu", dtype=torch.float32), 0),
}


@pytest.mark.parametrize("kind", OUTERMOST)
def test_which_dimension_is_outermost(kind):
    function, expected = OUTERMOST[kind]
    trace = thunder.trace()(function, torch.ones(4, 4, 4))
    assert find_outermost(trace.bound_symbols[:-1]).get(trace.output.name) == expected
