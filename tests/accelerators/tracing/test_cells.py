"""Variables that inner functions share, as Thunder's interpreter keeps them: the same traces and errors."""

import warnings
from types import CellType

import pytest
import thunder
import torch
from same_traces import OWN, trace_with

from fusioncache import tracing
from fusioncache.thunder_adapter.installation import TRACING

X = torch.linspace(-1, 1, 4)


def shared(x, scale, *rest, **named):
    def inner(y):
        nonlocal scale
        scale = scale + 1
        return y * scale + rest[0] * named["k"]

    return inner(x) + inner(inner(x)) * scale


def lists_and_tuples(x):
    seen, pair = [], (x, [x])

    def add(y):
        seen.append(y)
        return pair[1][0] * len(seen)

    return add(x) + add(x) + seen[1] + pair[0]


def renamed(x):
    y = x + 1

    def inner():
        z = y * 2
        return lambda: z + y

    return inner()() + inner()()


def set_later(x):
    def inner():
        return later * x

    later = 3
    first = inner()
    later = x + 1
    return first + inner()


def recursive(x):
    def inner(y, depth):
        return y if not depth else inner(y + x, depth - 1)

    return inner(x, 3)


def in_a_loop(x):
    return sum([each(x) for each in [lambda y, by=by: y * by + x for by in range(3)]])


def made_by_hand(x):
    cell = CellType(x)
    return cell.cell_contents + x


class Base:
    def scaled(self, x):
        return x * 2


class Derived(Base):
    def scaled(self, x):
        def more():
            return __class__.__name__.count("e") * x

        return super().scaled(x) + more()


def of_a_class(x):
    return Derived().scaled(x)


def never_set(x):
    def inner():
        return later

    if x is None:
        later = x
    return inner()


def deleted(x):
    def inner():
        return y  # noqa: F821

    y = x
    del y
    return inner()


OF_A_TENSOR = (lists_and_tuples, renamed, set_later, recursive, in_a_loop, made_by_hand, of_a_class)
PROGRAMS = [
    (shared, (X, 2, X), {"k": 3}),
    *((each, (X,), {}) for each in (*OF_A_TENSOR, never_set, deleted, torch.nn.Sequential(torch.nn.ReLU()))),
]


@pytest.mark.parametrize(("program", "args", "kwargs"), PROGRAMS)
def test_traces_and_errors_stay_the_same(program, args, kwargs):
    own = trace_with(OWN, program, *args, **kwargs)
    assert trace_with([*OWN, "cells"], program, *args, **kwargs) == own
    assert trace_with(TRACING, program, *args, **kwargs) == own


@pytest.mark.parametrize("group", ["cells", "natives"])
def test_values_of_no_known_origin_are_reported(group):
    """Who asks to be warned is warned of each, also in what a shortcut would leave out."""

    def count():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            thunder.jit(shared, sharp_edges="warn")(X, 2, X, k=3)
        return len(caught)

    own = count()
    tracing.install([group])
    found = count()
    tracing.uninstall()
    assert found == own > 0
