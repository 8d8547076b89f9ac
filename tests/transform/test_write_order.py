"""What a program reads of memory that it writes in place is what was there at that moment, however it is grouped."""

import pytest
import thunder
import thunder.torch as ltorch
import torch
from models import compile_plain, compile_with
from thunder.core.symbol import BoundSymbolTag

import fusioncache
from fusioncache.transform import executor

pytestmark = pytest.mark.usefixtures("eager_regions")
"""What is grouped with what is decided before anything is compiled."""


def reads_first(x, y):
    first = x + 2
    x.mul_(2)
    return first + 1, y + 1


def reads_a_view_first(x, y):
    first = x[1:] + 2
    x.mul_(2)
    return first * x[1:] + 1


def writes_into_a_view(x, y):
    first = x * 3
    x[1].add_(y[1])
    return first + x


def reads_between_two_writes(x, y):
    x.add_(1)
    between = x * y
    x.mul_(2)
    return between + x


def reads_the_other(x, y):
    first = y + 2
    x.mul_(2)
    return first + 1, y + 1


def writes_what_it_made(x, y):
    made = x + y
    first = made * 2
    made.add_(1)
    return first + made


PROGRAMS = (reads_first, reads_a_view_first, writes_into_a_view, reads_between_two_writes, reads_the_other)
PROGRAMS += (writes_what_it_made,)


@pytest.mark.parametrize("compile_program", [lambda program: compile_with(program)[0], compile_plain])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_read_comes_in_front_of_the_write_that_follows_it(program, compile_program):
    compiled = compile_program(program)
    for is_shared in (False, True):
        results = []
        for function in (program, compiled):
            x = torch.arange(1.0, 25.0).reshape(8, 3)
            y = x if is_shared else x + 0.5
            results.append((function(x, y), x, y))
        torch.testing.assert_close(*results, rtol=0, atol=0)


def test_no_region_has_operations_of_forward_and_of_backward(monkeypatch):
    """Thunder parts the two behind the executor, and sorts a trace with writes so that they may alternate."""
    monkeypatch.setattr(executor, "keeps_order", lambda *given: False)
    own = next(each for each in fusioncache.executors() if each.name == "fusioncache")

    def alternate(x, y):
        x.mul_(2)
        return ltorch.exp(x) * 2, ltorch.exp(y) * 2, ltorch.sin(ltorch.exp(y)) * 2

    trace = thunder.trace()(alternate, torch.ones(3), torch.ones(3))
    for symbol in trace.bound_symbols[5:-1:4]:
        symbol.tags.add(BoundSymbolTag.BACKWARD)
    fused = [symbol.subsymbols for symbol in own.fusion_pass(trace).bound_symbols if symbol.sym.is_fusion]
    names = [[each.sym.name for each in region] for region in fused]
    assert names == [["exp", "mul"], ["exp"], ["mul", "exp", "sin"], ["mul"]]
