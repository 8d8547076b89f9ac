"""Attributes by every way that Python knows: properties, descriptors, slots, ``__getattr__``, metaclasses, modules."""

import functools
import types

import torch
from torch import nn

from hostile_programs.observation import X, answering


def properties(run):
    events = run.events

    def get(self):
        events.append("get")
        return self.hidden

    def put(self, value):
        events.append(f"set {value}")
        self.hidden = value * 2

    class Thing:
        hidden = 2
        scale = property(get, put, lambda self: events.append("del"))
        broken = property(lambda self: self.no_such_thing)
        cached = functools.cached_property(lambda self: events.append("cached") or self.hidden + 1)
        cached.__set_name__(None, "cached")

    class Lenient(Thing):
        def __getattr__(self, name):
            return f"made {name}"

    one, outside = Thing(), Thing()

    def f(x):
        mine = Thing()
        mine.scale = 5
        a = mine.scale
        del mine.scale
        x = x * a + mine.scale + mine.cached + mine.cached + outside.scale + getattr(outside, "scale", 9)
        return x + hasattr(one, "broken") + getattr(one, "broken", 4) + len(Lenient().broken)

    def written(x):
        one.broken = 2
        return x

    run.each(f, lambda x: x * one.broken, written)
    outside.scale = 7
    run(f, X)


def getattr_and_getattribute(run):
    events = run.events

    class Fallback:
        there = 1

        def __getattr__(self, name):
            events.append(f"fallback {name}")
            if name.startswith("no"):
                raise AttributeError(name)
            return len(name)

    class Always:
        there = 1

        def __getattribute__(self, name):
            if name != "__class__":  # Thunder's own isinstance asks for it now and then
                events.append(f"always {name}")
            return 42 if name == "fixed" else object.__getattribute__(self, name)

    class Both(Always, Fallback):
        pass

    def f(x):
        a, b, c = Fallback(), Always(), Both()
        x = x + a.there + a.abc + b.there + c.missing + c.there
        return x + hasattr(a, "nope") + getattr(a, "nope", 3) + hasattr(a, "abcd")

    outside = Fallback(), Always(), Both()
    run.each(
        f,
        lambda x: x + Always().fixed + getattr(Both(), "fixed") + hasattr(Always(), "fixed"),
        lambda x: x + Fallback().nope,
        lambda x: x + Always().nope,
        lambda x: x + outside[0].abc + outside[1].there + outside[2].missing,
        lambda x: x + outside[1].fixed,
    )


class Data:
    """A data descriptor that has a value of each object."""

    def __set_name__(self, owner, name):
        self.name = name

    def __get__(self, one, owner=None):
        return 5 if one is None else one.__dict__.get(self.name, 6)

    def __set__(self, one, value):
        one.__dict__[self.name] = value + 1


def descriptors(run):
    class Thing:
        a, b, m = Data(), answering(__get__=7)(), answering(__get__=lambda self, *of: abs)()
        c = answering(__set__=lambda self, one, value: {}["never"])()

    class Child(Thing):
        b = 70

    def f(x):
        one, two = Thing(), Child()
        x = x + one.a + one.b + Thing.a + two.b
        one.a = 10
        one.b = 20
        one.__dict__["m"] = lambda x: x
        return x + one.a + one.b + one.m(x) + (one.c is not None)

    def g(x):
        Thing().c = 3
        return x

    run.each(f, g)
    Thing.b = 700
    run(f, X)


def slots(run):
    class Slotted:
        __slots__ = ("a", "b")

    class Open(Slotted):
        pass

    outside = Slotted()
    outside.a, outside.b = X, 3

    def f(x):
        one, other = Slotted(), Open()
        one.a = 2
        other.a = 3
        other.z = 4
        return x * one.a + other.a * other.z + outside.a * outside.b + hasattr(one, "b")

    def written(x):
        Slotted().z = 3
        return x

    run.each(f, lambda x: x + Slotted().b, written)
    for name, value in (("b", 4), ("a", X * 2)):
        setattr(outside, name, value)
        run(f, X)
    del outside.b
    run(f, X)


def metaclasses_and_class_tricks(run):
    Meta = answering(
        type,
        __getattr__=lambda cls, name: len(name),
        __call__=lambda cls, *args: Extra(),
        __instancecheck__=lambda cls, one: one == 3,
        __len__=lambda cls: 6,
        __iter__=lambda cls: iter((1, 2)),
        __getitem__=lambda cls, key: key * 2,
        __contains__=lambda cls, key: True,
        __bool__=lambda cls: False,
    )

    class Extra:
        extra = 4

    class Liar:
        __class__ = property(lambda self: int)

    class Made(metaclass=Meta):
        a, __class_getitem__ = 1, classmethod(lambda cls, key: 99)

    run.each(
        lambda x: x + Made.a + Made.abc + isinstance(3, Made) + isinstance(Liar(), int) + (type(Liar()) is int),
        lambda x: x + list[int].__origin__([1, 2])[1],
        lambda x: x + Made().extra,
        lambda x: x + isinstance(Made(), Made),
        lambda x: x + len(Made) + sum(Made) + Made[4] + (5 in Made),
        lambda x: x + (1 if Made else 2) + bool(Made),
    )


def modules_of_python(run):
    space = types.ModuleType("space")
    space.scale = 3
    exec("def apply(x):\n    return x * scale", space.__dict__)

    def f(x):
        return space.apply(x) + space.scale

    def imported(x):
        import math
        from math import floor as down
        from os import path

        return x * math.pi + down(2.5) + len(path.join("a", "b"))

    run.each(f, imported)
    for name, value in (("scale", 4), ("apply", torch.sin)):
        setattr(space, name, value)
        run(f, X)
    space.__getattr__ = lambda name: 12
    del space.scale
    run(f, X)


def attributes_of_torchs_modules(run):
    events = run.events

    class Lazy(nn.Module):
        twice = property(lambda self: self.weight * 2)
        broken = property(lambda self: self.no_such_thing)

        def __init__(self):
            super().__init__()
            self.inner, self.weight = nn.Linear(3, 3), nn.Parameter(torch.ones(3))
            self.hidden_scale = 3

        def __getattr__(self, name):
            if name == "scale":
                return super().__getattr__("weight") * self.hidden_scale
            return 5 if name == "magic" else super().__getattr__(name)

        def __setattr__(self, name, value):
            events.append(name)
            super().__setattr__(name, value)

        def forward(self, x):
            x = self.inner(x) * self.scale + self.magic + self.twice
            return x + hasattr(self, "nothing") + getattr(self, "nothing", 4) + hasattr(self, "broken")

    class Missing(nn.Module):
        def forward(self, x):
            return self.no_such_thing(x)

    class Broken(Lazy):
        def forward(self, x):
            return x + self.broken

    model = Lazy()
    run(model, X)
    model.hidden_scale = 4
    run.each(model, Missing(), Broken())


def a_little_of_everything(run):
    class Model(nn.Module):
        """A module, a hook, a condition, a buffer, arguments in a list and by name."""

        def __init__(self):
            super().__init__()
            self.block = nn.Linear(3, 3, bias=False)
            self.register_buffer("scale", torch.full((3,), 2.0))
            self.sizes = [1, 2.5]

        def forward(self, x, *others):
            x = self.add(self.block(x) * self.scale, *others, b=2, **{"a": x})
            return x + 1 if x.shape[0] > 2 else x, {"x": x[:1]}

        def add(self, x, *others, **more):
            for other in others:
                x = x + other * self.sizes[-1]
            return x + sum(more[name] for name in sorted(more))

    model = Model()
    model.register_forward_pre_hook(lambda module, args: (args[0] * 3, *args[1:]))
    run(model, X, X, 2.0)
