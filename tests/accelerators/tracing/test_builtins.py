"""Builtins that helpers of Thunder's look up: whoever meets the same ones finds them, and guards say where from."""

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


def lengths(x):
    return x + len(TABLE) + len((1, 2)) + len([x]) + len(ORDERED)


def truths(x):
    return x + 1 if TABLE and (1,) and ORDERED else x


def negations(x):
    return x + (not 3) + (not "") + (not TABLE) + (NOTHING or 1) + (EMPTY or 2)


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


def members(x):
    return x if "a" in TABLE else None  # arithmetic would look up the same


def keywords(x):
    return add(x, *(1, 2), **TABLE)


def partials(x):
    return PARTIAL(x, 1)


def partials_with_names(x):
    return PARTIAL(x, 1, two=2) + WITH_NAME(x)


def joined(x):
    return x + ({"b": 1} | TABLE)["a"]


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


FUNCTIONS = {
    "containers": (lengths, members),
    "natives": (keywords, partials, partials_with_names, joined),
    "conditions": (truths, negations),
    "operators": (operations,),
    "iteration": (loops,),
}
CASES = [(group, function) for group, functions in FUNCTIONS.items() for function in functions]


@pytest.mark.parametrize(("group", "function"), CASES, ids=lambda each: getattr(each, "__name__", each))
def test_builtins_come_from_where_thunder_has_them_from(group, function):
    program, others = with_builtins(function), [each for each in OWN if each != group]
    tracing.install(others)
    own = prologue(program)
    tracing.install([*others, group])
    assert prologue(program) == own
    assert "check_string_value" in own
