"""Conditions told of plain values at once, and those of all others as Thunder does."""

import warnings
from collections import OrderedDict

import pytest
import thunder
import torch
from same_traces import OWN, trace_with
from thunder.core import interpreter

from fusioncache import tracing
from fusioncache.thunder_adapter.installation import TRACING

X = torch.linspace(-1, 1, 4)
CALLS: list[str] = []


class Truth:
    def __init__(self, value):
        self.value = value

    def __bool__(self):
        CALLS.append("bool")
        if self.value == "raise":
            raise ValueError("neither true nor false")
        return self.value


class Length:
    def __init__(self, length):
        self.length = length

    def __len__(self):
        CALLS.append("len")
        return self.length


class Odd(dict):
    """A dict that is true where it is empty."""

    def __bool__(self):
        return not len(self)


class OddLength(list):
    def __len__(self):
        return 0


class Count(int):
    def __bool__(self):
        return self != 3


def truths(x, *values):
    for value in values:
        if value:
            x = x + 1
        if not value:
            x = x * 2
        x = x - (not value)
        x = x if bool(value) and value else -x
        while value:
            x, value = x * 3, None
    return x


def comparisons(x, a, b):
    taken = 0 if a < b else 1
    taken += 2 if a == b or not a else 3
    return x * taken if x.shape[0] > 3 and a else x


def of_a_tensor(x):
    return x if x.sum() > 0 else -x


def neither(x):
    return x if Truth("raise") else -x


def caught(x):
    try:
        return x if Truth("raise") else -x
    except ValueError as error:
        return x * len(str(error))


class Hooked(torch.nn.Module):
    """Conditions on what the prologue guards."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)
        self.inner.register_forward_hook(lambda module, args, output: output * 2)
        self.flags, self.steps, self.name = {"on": 1}, [3, 0], ""

    def forward(self, x):
        if self.flags and self.steps and not self.name:
            x = self.inner(x)
        return x if self.steps[1] or self.training else -x


OF_EVERY_KIND = (
    *(0, -1, -0.0, float("nan"), 1j, True, False, None, "", b"a"),
    *((), (0,), [], [X], {}, {"a": 1}, OrderedDict(), OrderedDict(a=1), range(0), len),
)
PROGRAMS = [
    (truths, (X, *OF_EVERY_KIND)),
    (lambda x: truths(x, set(), {1}, Truth(True), Truth(False), Length(0), Length(2), Odd(), Odd(a=1)), (X,)),
    (lambda x: truths(x, OddLength([1]), Count(3), Count(0), x.shape, x.shape[:0], {"a": x}, {}), (X,)),
    (comparisons, (X, 1, 2)),
    (comparisons, (X, 0.0, -0.0)),
    (of_a_tensor, (X,)),
    (neither, (X,)),
    (caught, (X,)),
    (Hooked(), (X,)),
]


@pytest.mark.parametrize(("program", "args"), PROGRAMS)
def test_traces_and_errors_stay_the_same(program, args):
    def traced(groups):
        CALLS.clear()
        return trace_with(groups, program, *args), list(CALLS)

    own = traced(OWN)
    assert traced([*OWN, "conditions"]) == own
    assert traced(TRACING) == own


@pytest.mark.parametrize("holder", ["_general_jit_lookaside_map", "_default_lookaside_map"])
def test_a_bool_of_somebody_else_is_asked(monkeypatch, holder):
    """Whatever stands in for ``bool`` decides on every condition."""
    lookasides = getattr(thunder.core.jit_ext if "general" in holder else interpreter, holder)
    monkeypatch.setitem(lookasides, bool, lambda value: interpreter.wrap_const(value.value == 3))
    own = trace_with(OWN, comparisons, X, 3, 4)
    assert trace_with([*OWN, "conditions"], comparisons, X, 3, 4) == own


def test_values_of_no_known_origin_are_warned_of_as_before():
    def program(x):
        return x if len(x.shape) - 1 else -x

    def warned(groups):
        tracing.uninstall()
        tracing.install(groups)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            thunder.jit(program, sharp_edges="warn")(X)
        tracing.uninstall()
        return [str(each.message) for each in caught if "sharp edge" in str(each.message)]

    own = warned(OWN)
    assert len(own) > 2
    assert warned([*OWN, "conditions", "operators", "iteration"]) == own
