"""Calls in Thunder's interpreter: the same traces and errors with its own small functions done natively."""

import functools
from collections import OrderedDict, namedtuple
from unittest import mock

import pytest
import thunder
import torch
from same_traces import trace_with
from thunder.core import interpreter

from fusioncache import tracing
from fusioncache.thunder_adapter.installation import TRACING, find_known
from fusioncache.thunder_adapter.shortcuts import calls

X = torch.linspace(-1, 1, 4)
Y = torch.linspace(1, 2, 4)
OWN = ["frames"]  # others do without the containers' small functions, too
NUMBERS = {"a": 2, "b": (3, [4])}


class Names(dict):
    """Keywords that are no plain dict."""

    def __getitem__(self, key):
        return super().__getitem__(key) * 2


class Steps(list):
    """Arguments that are no plain list."""

    def __iter__(self):
        return reversed(list(super().__iter__()))


def weigh(first, /, second=1, *rest, scale=1, **named):
    return first * second * scale + sum(rest) + sum(named[each] for each in sorted(named))


def forwarding(x, *args, **kwargs):
    return weigh(x, *args, **kwargs) + weigh(x, *args, *[1, 2], **{"first": 3}, **kwargs) + weigh(*(x,))


def containers(x, pair, numbers):
    def inner(y, sizes, **named):
        return y * sizes[0] + named["b"][1][0] * pair[1][0]

    return inner(pair[0], *pair[1:], **numbers) + inner(x, (2,), **dict(numbers))


def of_other_kinds(x):
    return weigh(*Steps([x, 2, 3])) + weigh(x, **OrderedDict(scale=3)) + weigh(*"", x) + weigh(*range(1, 3), x)


def keywords_that_lie(x):
    return weigh(x, **Names(scale=2))


def no_sequence(x):
    return weigh(*(each for each in (x, 2)))


class Bound:
    """Methods of every kind."""

    factor = 3

    def __init__(self, start):
        self.start = start

    def plain(self, x, *args, **kwargs):
        return weigh(x, self.start, *args, **kwargs)

    @classmethod
    def of_class(cls, x, factor=None):
        return x * (cls.factor if factor is None else factor)

    @staticmethod
    def of_none(x, y):
        return x - y

    twice = functools.partialmethod(plain, scale=2)

    def __call__(self, x):
        return self.plain(x, 5, scale=2)

    def __get__(self, instance, owner):
        return self


def methods(x):
    bound = Bound(2)
    method, of_class = bound.plain, Bound.of_class
    more = method(x, (1), scale=2) + of_class(x) + bound.of_class(x, factor=2) + bound.of_none(x, 1) + bound(x)
    return more + bound.twice(x) + bound.plain.__func__(bound, x) + [x, 2].__getitem__(0) + x.__add__(1)


WEIGHED = functools.partial(weigh, 2, 0.5)
OF_METHOD = functools.partial(Bound(2).plain, 3)


def partials(x):
    named = functools.partial(weigh, scale=2, z=3)
    more = named(x, z=4) + functools.partial(WEIGHED, 3)(x) + functools.partial(x.sum, 0)()
    return more + WEIGHED(x) + WEIGHED(x, scale=2) + OF_METHOD(x, scale=3) + OF_METHOD(*[x, 2])


def asking_for_their_frame(x):
    seen = 5
    point = functools.partial(namedtuple, "Point")("x y")
    return x + len(functools.partial(locals)()) * seen + point(1, 2).x


def closures(x):
    def deep(y):
        def deeper():
            nonlocal y
            y = y + x
            return y

        return deeper() + deeper()

    return deep(x) + [part() for part in [lambda each=each: x * each for each in (1, 2)]][1]


def recursion(x, depth=4):
    return x if not depth else recursion(x + depth, depth=depth - 1)


class Reads(torch.nn.Module):
    """Reads what the prologue guards: numbers and texts in containers of the module."""

    def __init__(self):
        super().__init__()
        self.pair = (2, "mean", (3, 4))
        self.named = {"scale": 2, "z": 5}
        self.call = functools.partial(weigh, scale=self.pair[0])
        self.first = functools.partial(weigh, self.pair[0])
        self.weight = torch.nn.Parameter(torch.ones(4))
        self.register_forward_pre_hook(lambda module, args: (args[0] + module.pair[2][1],))

    def forward(self, x):
        if self.pair[1] == "mean":
            x = x * self.pair[0]
        x = self.first(*self.pair[2]) + self.call(x) + weigh(x, **self.named)
        return torch.nn.functional.linear(x, self.weight.reshape(1, 4)) + int.__name__.count("n")


def repeated_keyword(x):
    return weigh(x, **{"scale": 1}, **{"scale": 2})


def given_twice(x):
    return weigh(x, 1, **{"second": 2})


def no_argument(x):
    return x + (lambda a, b: a)(*[1])


def too_many(x):
    return x + (lambda a: a)(*[1], 2)


def unknown_keyword(x):
    return x + (lambda a: a)(1, **{"c": 1})


def raising(x):
    try:
        Bound(2).plain(x, "a")
    except TypeError as error:
        return x + len(type(error).__name__)


def raised(x):
    return OF_METHOD(x, "a")


OF_A_TENSOR = (of_other_kinds, methods, partials, asking_for_their_frame, closures, recursion, Reads(), raising)
FAILING = (
    repeated_keyword,
    given_twice,
    no_argument,
    too_many,
    unknown_keyword,
    raised,
    keywords_that_lie,
    no_sequence,
)
PROGRAMS = [
    (forwarding, (X, 2, 3), {"scale": 2, "z": 4}),
    (containers, (X, (Y, (2, 3)), NUMBERS), {}),
    *((each, (X,), {}) for each in OF_A_TENSOR + FAILING),
]


@pytest.mark.parametrize(("program", "args", "kwargs"), PROGRAMS)
def test_traces_and_errors_stay_the_same(program, args, kwargs):
    own = trace_with(OWN, program, *args, **kwargs)
    assert trace_with([*OWN, "natives"], program, *args, **kwargs) == own
    assert trace_with(TRACING, program, *args, **kwargs) == own


def test_nothing_that_can_be_done_natively_is_interpreted():
    """Each is one of Thunder's functions, and none is interpreted where it has plain containers to work on."""
    tracing.install(["natives"])
    known = {id(code): code.co_qualname for code, _ in interpreter._interpret_call.natives}
    assert len(known) == len(calls.list_natives())
    ran = []

    def run(frame, *args, **kwargs):
        ran.append(id(frame.code))
        return own(frame, *args, **kwargs)

    own = interpreter._run_frame
    with mock.patch.object(interpreter, "_run_frame", run):
        thunder.jit(forwarding)(X, 2, scale=2)
        thunder.jit(closures)(X)
    tracing.uninstall()
    assert ran and not set(ran) & set(known)


@pytest.mark.parametrize("native", calls.list_natives(), ids=lambda native: native.do.__name__)
def test_what_has_another_source_is_interpreted(native):
    known = find_known("small functions")
    assert native.list_code(known)
    del known[native.owner]
    assert native.list_code(known) == []


def test_a_record_of_the_interpreter_is_whole():
    """Who asks for what was interpreted is shown Thunder's own functions as well."""

    def count():
        compiled = thunder.jit(forwarding, debug_options=thunder.DebugOptions(record_interpreter_history=True))
        compiled(X, 2, scale=2)
        return len(thunder.last_interpreter_log(compiled))

    own = count()
    tracing.install(["natives"])
    assert count() == own
    tracing.uninstall()
