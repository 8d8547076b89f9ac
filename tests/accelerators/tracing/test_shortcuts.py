"""Shortcuts of Thunder's interpreter: what they skip, what they leave alone, and what they report nevertheless.

``test_hostile_programs.py`` tests that no trace, result or error differs.
"""

import warnings
from collections import Counter, OrderedDict
from functools import partial

import pytest
import thunder
import torch
from same_traces import OWN, list_interpreted, trace_with
from thunder.core import interpreter, jit_ext, pytree
from thunder.torch.experimental import dtensor_torch_and_prims

from fusioncache import tracing
from fusioncache.thunder_adapter.installation import TRACING, find_known
from fusioncache.thunder_adapter.shortcuts import calls, lookups

X = torch.linspace(-1, 1, 6).reshape(2, 3)


def weigh(first, /, second=1, *rest, scale=1, **named):
    return first * second * scale + sum(rest) + sum(named[each] for each in sorted(named))


def forwarding(x, *args):
    kwargs = {"scale": 2}
    return weigh(x, *args, **kwargs) + weigh(x, *args, *[1, 2], **{"first": 3}, **kwargs) + weigh(*(x,))


def loop(x):
    for each in [1, 2]:
        x = x + each
    a, b = (each * 2 for each in (1, 2))
    return x * a + b


def test_nothing_that_can_be_done_natively_is_interpreted():
    """Natives are functions of Thunder, and none is interpreted if it works on plain containers."""
    tracing.install(["natives"])
    known = {id(code): code.co_qualname for code, _ in interpreter._interpret_call.natives}
    assert len(known) == len(calls.list_natives())
    ran = {id(frame.code) for frame in list_interpreted(forwarding, X, 2)}
    assert ran and not ran & set(known)


def test_what_moves_iterators_of_lists_on_and_attributes_of_modules_are_not_interpreted():
    def find_names():
        frames = [*list_interpreted(loop, X), *list_interpreted(torch.nn.Linear(3, 3), X)]
        return {name for name in (frame.qualname for frame in frames) if "next" in name or "__getattr__" in name}

    assert find_names()
    tracing.install([*OWN, "iteration", "attributes"])
    assert not find_names()


@pytest.mark.parametrize("native", calls.list_natives(), ids=lambda native: native.do.__name__)
def test_what_has_another_source_is_interpreted(native):
    known = find_known("small functions")
    assert native.list_code(known)
    del known[native.owner]
    assert native.list_code(known) == []


class Failing(torch.nn.Module):
    """Has a property that fails."""

    calls: list[str] = []  # noqa: RUF012

    @property
    def failing(self):
        self.calls.append("ran")
        raise AttributeError("failing")

    def forward(self, x):
        return x + getattr(self, "failing", 1)


@pytest.mark.parametrize("is_known", [True, False])
def test_a_property_that_fails_runs_once(monkeypatch, is_known):
    """This holds for any error, because the trace may contain operations of the property."""
    if not is_known:  # another torch has another ``__getattr__``, which is interpreted
        monkeypatch.setattr(lookups, "find_known", lambda capability: {})
    found = []
    for groups in (OWN, [*OWN, "attributes"]):
        Failing.calls.clear()
        found.append((trace_with(groups, Failing(), X), [*Failing.calls]))
    assert found[0] == found[1] and found[0][1] == ["ran"]


def test_values_of_no_known_origin_are_warned_of_as_before():
    """Each value is warned of, also in code that a shortcut would skip."""

    def program(x, scale, *rest, **named):
        def inner(y):
            nonlocal scale
            scale = scale + 1
            return y * scale + rest[0] * named["k"]

        x = inner(x) + inner(inner(x)) * scale
        return x if len(x.shape) - 1 else -x

    def warned(groups):
        tracing.uninstall()
        tracing.install(groups)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            thunder.jit(program, sharp_edges="warn")(X, 2, X, k=3)
        return [str(each.message) for each in caught if "sharp edge" in str(each.message)]

    own = warned(())
    assert len(own) > 2
    for groups in (["cells"], ["natives"], [*OWN, "conditions", "operators", "iteration"], TRACING):
        assert warned(groups) == own, groups


TABLE, ORDERED, NOTHING, EMPTY = {"a": 1}, OrderedDict(a=1), None, ""
MET = [bool, callable, dict, getattr, hasattr, int, isinstance, len, next, object, setattr, type, StopIteration]
MET = {each.__name__: each for each in MET}
"""Builtins that a program finds outside of the module ``builtins``; guards name the place."""


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


def raised(x):
    return x.transpose(0, 1).transpose(0, 1).reshape(7)


def what_it_looks_up(x):
    """Meets what is looked up on the way, before it and after it, from elsewhere."""
    kinds = {torch.Size: 1, list: 2, torch.device: 3, type(None): 4}
    x = x.transpose(0, 1) * kinds[torch.Size]
    x = x.transpose(0, 1) * kinds[list] + isinstance(x, torch.Tensor) + len([torch.distributed.is_available()])
    return x.transpose(0, 1) * (2 if torch.finfo(torch.float32).bits == 32 else 3)


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
CASES |= {each.__name__: ("leaps", each) for each in (several, raised, what_it_looks_up)}
CASES["iterator"] = "iteration", an_iterator_that_fails


@pytest.mark.parametrize(("group", "program"), CASES.values(), ids=CASES)
def test_traces_guards_and_errors_are_the_same(group, program):
    others = [each for each in OWN if each != group]
    assert trace_with([*others, group], program, X) == trace_with(others, program, X)


LOOKASIDES = {"jit": jit_ext._general_jit_lookaside_map, "interpreter": interpreter._default_lookaside_map}


@pytest.mark.parametrize("lookasides", LOOKASIDES.values(), ids=LOOKASIDES)
def test_another_bool_is_asked(monkeypatch, lookasides):
    """A replacement of ``bool`` decides every condition."""

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
