"""Builtins that helpers of Thunder's look up: code that meets the same ones finds them, and guards say where from."""

from collections import OrderedDict
from functools import partial

import pytest
import thunder
import torch
from same_traces import OWN

from fusioncache import tracing

TABLE, ORDERED, NOTHING, EMPTY = {"a": 1}, OrderedDict(a=1), None, ""
MET = [bool, callable, dict, getattr, hasattr, int, isinstance, len, next, object, setattr, type, StopIteration]
MET = {each.__name__: each for each in MET}
"""Builtins that the program has from elsewhere than from the module of builtins."""


def add(x, *others, one=1, **named):
    return x + one


PARTIAL, WITH_NAME = partial(add), partial(add, one=2)


def operations(x):
    number = len("abc") * 2
    number += 1
    x = 2 - x * number
    x += 1
    return x


def loops(x):
    first, second = pair = (1, 2)
    for each in pair:
        x = x + each * first * second
    for each in range(2):
        x = x + each
    return x


def with_builtins(function):
    def program(x):
        abs  # noqa: B018 - so that the dict of builtins has a wrapper, which stays
        x = function(x)
        x = x + MET["hasattr"].__name__.find("attr")  # before a loop meets any
        return x + sum([len(MET[name].__name__) for name in MET])

    return program


def prologue(program):
    compiled = thunder.jit(program)
    compiled(torch.ones(2))
    return str(thunder.last_prologue_traces(compiled)[0])


CASES = {
    "lengths": ("containers", lambda x: x + len(TABLE) + len((1, 2)) + len([x]) + len(ORDERED)),
    "members": ("containers", lambda x: x if "a" in TABLE else None),  # arithmetic would look up the same
    "keywords": ("natives", lambda x: add(x, *(1, 2), **TABLE)),
    "partials": ("natives", lambda x: PARTIAL(x, 1)),
    "partials with names": ("natives", lambda x: PARTIAL(x, 1, two=2) + WITH_NAME(x)),
    "joined": ("natives", lambda x: x + ({"b": 1} | TABLE)["a"]),
    "truths": ("conditions", lambda x: x + 1 if TABLE and (1,) and ORDERED else x),
    "negations": ("conditions", lambda x: x + (not 3) + (not "") + (not TABLE) + (NOTHING or 1) + (EMPTY or 2)),
    "operations": ("operators", operations),
    "loops": ("iteration", loops),
}


@pytest.mark.parametrize(("group", "function"), CASES.values(), ids=CASES)
def test_builtins_come_from_where_thunder_has_them_from(group, function):
    program, others = with_builtins(function), [each for each in OWN if each != group]
    tracing.install(others)
    own = prologue(program)
    tracing.install([*others, group])
    assert prologue(program) == own
    assert "check_string_value" in own
