"""Programs of which one group of shortcuts traces what another one meets: the same traces, guards and errors."""

from collections import Counter, OrderedDict
from functools import partial

import pytest
import thunder
import torch
from same_traces import OWN, list_interpreted, trace_with
from thunder.core import interpreter, jit_ext, pytree
from thunder.torch.experimental import dtensor_torch_and_prims

from fusioncache import tracing
from fusioncache.thunder_adapter.installation import TRACING

X = torch.linspace(-1, 1, 6).reshape(2, 3)
TABLE, ORDERED, NOTHING, EMPTY = {"a": 1}, OrderedDict(a=1), None, ""
MET = [bool, callable, dict, getattr, hasattr, int, isinstance, len, next, object, setattr, type, StopIteration]
MET = {each.__name__: each for each in MET}
"""Builtins that a program has from elsewhere than from the module of builtins: guards say from where."""


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


def several(x):
    y = x.transpose(0, 1).reshape(2, 3).transpose(0, 1)
    return y.reshape((2, 3)) + x.reshape(2, -1).transpose(-1, -2).reshape(2, 3)


def caught(x):
    try:
        x = x.transpose(0, 7)
    except IndexError as error:
        x = x + len(str(error))
    return x.transpose(0, 1).transpose(0, 1)


def raised(x):
    return x.transpose(0, 1).transpose(0, 1).reshape(7)


def what_it_looks_up(x):
    """Meets what is looked up on the way, before it and after it, from elsewhere."""
    kinds = {torch.Size: 1, list: 2, torch.device: 3, type(None): 4}
    x = x.transpose(0, 1) * kinds[torch.Size]
    x = x.transpose(0, 1) * kinds[list] + isinstance(x, torch.Tensor) + len([torch.distributed.is_available()])
    return x.transpose(0, 1) * (2 if torch.finfo(torch.float32).bits == 32 else 3)


class Holder(torch.nn.Module):
    """Has as attributes what is looked up on the way."""

    def __init__(self):
        super().__init__()
        self.kinds = (torch.Size, torch.device, filter, map)
        self.module, self.more = torch.types, torch.distributed
        self.flatten, self.all, self.number = pytree.tree_flatten, all, 3

    def forward(self, x):
        x = x.transpose(0, 1) * len(self.kinds)
        x = x.transpose(0, 1) * self.number * self.all([self.more.is_available(), True])
        x = x.transpose(0, 1) + (self.kinds[0] is torch.Size) + (self.module.py_sym_types[0] is torch.SymInt)
        return x.transpose(0, 1) + len(list(self.kinds[3](lambda each: each, (1, 2)))) + len(self.flatten((1, 2))[0])


def an_iterator_that_fails(x):
    def failing():
        yield 2
        raise ValueError("no item")

    items = failing()
    x = x * next(items, 3)
    try:
        return x + next(items, 5)
    except ValueError:
        return x - next(items, 7)  # it has ended by now


BUILTINS = {
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
CASES = {name: (group, with_builtins(function)) for name, (group, function) in BUILTINS.items()}
CASES |= {each.__name__: ("leaps", each) for each in (several, caught, raised, what_it_looks_up)}
CASES |= {"holder": ("leaps", Holder()), "iterator": ("iteration", an_iterator_that_fails)}


@pytest.mark.parametrize(("group", "program"), CASES.values(), ids=CASES)
def test_traces_guards_and_errors_are_the_same(group, program):
    others = [each for each in OWN if each != group]
    assert trace_with([*others, group], program, X) == trace_with(others, program, X)


LOOKASIDES = {"jit": jit_ext._general_jit_lookaside_map, "interpreter": interpreter._default_lookaside_map}


@pytest.mark.parametrize("lookasides", LOOKASIDES.values(), ids=LOOKASIDES)
def test_another_bool_is_asked(monkeypatch, lookasides):
    """Whatever stands in for ``bool`` decides on every condition."""

    def program(x, a, b):
        taken = 0 if a < b else 1
        taken += 2 if a == b or not a else 3
        return x * taken if x.shape[0] > 3 and a else x

    monkeypatch.setitem(lookasides, bool, lambda value: interpreter.wrap_const(value.value == 3))
    own = trace_with(OWN, program, X, 3, 4)
    assert trace_with([*OWN, "conditions"], program, X, 3, 4) == own


def test_all_but_the_first_choice_are_leapt_over_and_have_their_frames():
    wrapper, counts = "dispatch_to_impl.<locals>.wrapper", []
    for groups in ([name for name in TRACING if name != "leaps"], TRACING):
        tracing.uninstall()
        tracing.install(groups)
        counts.append(Counter(frame.qualname for frame in list_interpreted(several, X)))
    own, fast = counts
    assert own[wrapper] == fast[wrapper] > 2
    assert own["tree_flatten"] > fast["tree_flatten"] > 0
    assert fast["is_available"] == 1 < own["is_available"]


def test_a_function_on_the_way_that_was_exchanged_is_called(monkeypatch):
    called = []

    def tree_flatten(args, namespace=""):
        called.append(1)
        return pytree.optree.tree_flatten(args, none_is_leaf=True, namespace=namespace)

    tracing.install(["leaps"])
    monkeypatch.setattr(dtensor_torch_and_prims, "tree_flatten", tree_flatten)
    thunder.jit(lambda x: x.transpose(0, 1).transpose(0, 1).transpose(0, 1))(X)
    assert len(called) >= 3
