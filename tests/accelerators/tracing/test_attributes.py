"""Attributes looked up without interpreting how: the same traces, guards and errors, whatever a class makes of it."""

import collections
import types
from unittest import mock

import pytest
import thunder
import torch
from same_traces import OWN, trace_with
from thunder.core import interpreter

from fusioncache import tracing
from fusioncache.thunder_adapter.installation import TRACING
from fusioncache.thunder_adapter.shortcuts import lookups

X = torch.linspace(-1, 1, 4)
CALLS: list[str] = []


class Counted:
    """A descriptor written in Python, which writes down when it is asked."""

    def __set_name__(self, owner, name):
        self.name = name

    def __get__(self, instance, owner=None):
        CALLS.append(self.name)
        return self if instance is None else instance.__dict__.get("hidden", 3)


class Guarded(Counted):
    def __set__(self, instance, value):
        instance.__dict__["hidden"] = value


class Slots:
    __slots__ = ("empty", "full")

    def __init__(self):
        self.full = 2


class Fallback:
    known = 1

    def __getattr__(self, name):
        if name == "missing":
            raise AttributeError(f"no {name} here")
        if name == "broken":
            raise ValueError(name)
        return len(name)


class Loud(Fallback):
    def __getattribute__(self, name):
        if not name.startswith("__"):
            CALLS.append(name)
        return super().__getattribute__(name)


class Kinds:
    """An attribute of every kind, some in the class and in the instance."""

    number, text, nothing, both, pair = 2, "mean", None, 1, (1, (2, 3))
    plain, guarded, overridden = Counted(), Guarded(), Counted()
    bound = types.MethodType(len, [1, 2])
    partial = collections.OrderedDict
    native = staticmethod(abs)

    def __init__(self):
        self.both = 2
        self.method_too = lambda: 7
        self.__dict__["overridden"] = 5
        self.__dict__["guarded"] = 6

    def method(self):
        return self.both

    def method_too(self):
        return 1

    @classmethod
    def of_class(cls):
        return cls.number

    @property
    def computed(self):
        return self.both * 2

    @property
    def failing(self):
        return self.nothing_of_this_name

    @property
    def refusing(self):
        raise ValueError("refused")


def kinds(x):
    it = Kinds()
    it.guarded = 4
    more = it.number + it.both + it.plain + it.guarded + it.overridden + it.method() + it.method_too() + it.of_class()
    more += it.computed + it.bound() + it.native(-2) + Kinds.number + Kinds.method(it) + len(it.partial(a=1))
    return x * more + len(it.text) + (it.nothing is None) + it.pair[1][0] + hasattr(it, "failing") + x.numel()


def failures(x):
    it, slots, fallback = Kinds(), Slots(), Fallback()
    tensor = x
    for read in (
        lambda: it.failing,
        lambda: it.refusing,
        lambda: it.none,
        lambda: slots.empty,
        lambda: slots.none,
        lambda: fallback.missing,
        lambda: fallback.broken,
        lambda: tensor.none,
        lambda: (1).none,
        lambda: [].none,
        lambda: {}.none,
        lambda: torch.none,
    ):
        try:
            read()
        except (AttributeError, ValueError) as error:
            x = x + len(str(error)) + len(type(error).__name__)
    defaults = getattr(it, "none", 2) + getattr(it, "failing", 3) + getattr(slots, "empty", 4) + getattr(x, "none", 5)
    return x + slots.full + fallback.known + fallback.abc + defaults + getattr(fallback, "missing", 6)


def overridden_lookup(x):
    loud = Loud()
    return x * loud.known + loud.abc


class Mapping(dict):
    size = 3

    def get(self, key, default=None):
        return super().get(key, 4)


def containers(x):
    mapping = Mapping(a=1)
    point = collections.namedtuple("Point", "x y")(1, 2)
    items = [x]
    items.append(x)
    items.extend((x, x))
    more = mapping.size + mapping.get("b") + len(mapping.keys()) + point.y
    return sum(items) * more + {"a": 2}.get("a") + len("a,b".partition(",")) + "ab".find("b") + (1, 2).index(2)


class Block(torch.nn.Module):
    scale, kind = 2, "mean"

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)
        self.register_parameter("nothing", None)
        self.register_buffer("mask", torch.ones(4))
        self.register_buffer("none", None)
        self.limit = 3.0
        self.sizes = (1, (2, "ab"))
        self.inner.extra = 7

    @property
    def doubled(self):
        return self.limit * self.scale

    @property
    def member(self):
        return self.inner.bias

    def forward(self, x):
        x = self.inner(x) * self.mask + self.scale + self.doubled + self.sizes[1][0] + self.inner.extra + self.member
        if self.nothing is None and self.none is None and self.kind == "mean" and self.training:
            x = x + getattr(self, "absent", 2) + hasattr(self, "inner") + self.inner.in_features
        try:
            return self.absent
        except AttributeError as error:
            return (
                x * self.inner.weight.shape[0]
                + len(str(error))
                + len(self._parameters)
                + len(self.__dict__["_buffers"])
            )


class Hidden(Block):
    """Attributes that shadow each other, a parameter in ``__dict__``, and a ``__getattr__`` of its own."""

    def __init__(self):
        super().__init__()
        self.__dict__["mask"] = 2.0
        self._buffers["limit"] = torch.ones(4)
        self._modules["kind"] = torch.nn.Identity()

    def __getattr__(self, name):
        return 9 if name == "ninth" else super().__getattr__(name)

    def forward(self, x):
        return self.inner(x) * self.mask + self.limit + self.ninth + self.scale


class Absent(torch.nn.Module):
    def forward(self, x):
        return x + self.weight


class Refused(Block):
    def forward(self, x):
        return x + Kinds().refusing


class Shared(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.list = torch.nn.ModuleList([self.first, self.second, self.first])

    def forward(self, x):
        for each in self.list:
            x = each(x)
        return x * self.list[0].weight.sum() + self.list[-1].out_features


MODULES = (Block, Hidden, Absent, Refused, Shared)
FUNCTIONS = (kinds, failures, overridden_lookup, containers)


@pytest.mark.parametrize("program", [*FUNCTIONS, *MODULES], ids=lambda program: program.__name__)
def test_traces_and_errors_stay_the_same(program):
    def traced(groups):
        CALLS.clear()
        torch.manual_seed(0)
        return trace_with(groups, program() if program in MODULES else program, X), list(CALLS)

    own = traced(OWN)
    assert traced([*OWN, "attributes"]) == own
    assert traced(TRACING) == own


def test_a_property_that_fails_runs_once():
    """Whatever its error is: what it did before may be in the trace."""

    class Failing(Block):
        @property
        def failing(self):
            CALLS.append("ran")
            raise AttributeError("failing")

        def forward(self, x):
            return x + getattr(self, "failing", 1)

    def traced(groups):
        CALLS.clear()
        return trace_with(groups, Failing(), X), list(CALLS)

    own = traced(OWN)
    assert own[1] == ["ran"]
    assert traced([*OWN, "attributes"]) == own


def test_attributes_of_modules_are_not_interpreted():
    ran = []

    def run(frame, *args, **kwargs):
        ran.append(frame.code)
        return own(frame, *args, **kwargs)

    own = interpreter._run_frame
    tracing.install([*OWN, "attributes"])
    with mock.patch.object(interpreter, "_run_frame", run):
        thunder.jit(torch.nn.Linear(4, 4))(X)
    tracing.uninstall()
    assert torch.nn.Linear.forward.__code__ in ran and torch.nn.Module.__getattr__.__code__ not in ran


def test_a_getattr_of_another_torch_is_interpreted(monkeypatch):
    own = trace_with(OWN, Block(), X)
    monkeypatch.setattr(lookups, "find_known", lambda capability: {})
    assert trace_with([*OWN, "attributes"], Block(), X) == own
