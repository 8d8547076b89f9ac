"""Attributes by every way that Python knows: properties, descriptors, slots, ``__getattr__``, metaclasses."""

from __future__ import annotations

import functools
import types

import torch

from hostile_programs.observation import Runner, program

X = torch.linspace(-1, 1, 6).reshape(2, 3)


@program
def properties(run: Runner) -> None:
    events = []

    class Thing:
        def __init__(self):
            self._hidden = 2

        @property
        def scale(self):
            events.append("get")
            return self._hidden

        @scale.setter
        def scale(self, value):
            events.append(f"set {value}")
            self._hidden = value * 2

        @scale.deleter
        def scale(self):
            events.append("del")
            self._hidden = 0

        @property
        def broken(self):
            return self.no_such_thing

        @functools.cached_property
        def cached(self):
            events.append("cached")
            return self._hidden + 1

    class Lenient(Thing):
        def __getattr__(self, name):
            return f"made {name}"

    one, outside = Thing(), Thing()

    def f(x):
        mine = Thing()
        mine.scale = 5
        a = mine.scale
        del mine.scale
        return x * a + mine.scale + mine.cached + mine.cached + outside.scale + getattr(outside, "scale", 9)

    def g(x):
        return x * one.broken

    def h(x):
        try:
            one.broken
        except AttributeError:
            return x + 3 + hasattr(one, "broken") + getattr(one, "broken", 4)

    def k(x):
        return x * len(Lenient().broken)

    for each in (f, g, h, k):
        run(each, X)
    outside.scale = 7
    run(f, X)
    run.note("events", events)

    class ReadOnly:
        @property
        def a(self):
            return 1

    def written(x):
        ReadOnly().a = 2
        return x

    run(written, X)


@program
def getattr_and_getattribute(run: Runner) -> None:
    events = []

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
            if name == "fixed":
                return 42
            return object.__getattribute__(self, name)

    class Both(Always):
        def __getattr__(self, name):
            events.append(f"both {name}")
            return 9

    class Writes:
        def __setattr__(self, name, value):
            events.append(f"write {name}")
            object.__setattr__(self, name, value * 2)

        def __delattr__(self, name):
            events.append(f"delete {name}")
            object.__delattr__(self, name)

    def f(x):
        a, b, c = Fallback(), Always(), Both()
        x = x + a.there + a.abc + b.there + c.missing + c.there
        return x + hasattr(a, "nope") + getattr(a, "nope", 3) + hasattr(a, "abcd")

    def fixed(x):
        return x + Always().fixed

    def fixed_too(x):
        return x + getattr(Both(), "fixed") + hasattr(Always(), "fixed")

    def written(x):
        d = Writes()
        d.n = 4
        x = x * d.n
        del d.n
        return x + hasattr(d, "n")

    def g(x):
        return x + Fallback().nope

    def h(x):
        return x + Always().nope

    outside = Fallback(), Always(), Both()

    def k(x):
        return x + outside[0].abc + outside[1].there + outside[2].missing

    def m(x):
        return x + outside[1].fixed

    for each in (f, fixed, fixed_too, written, g, h, k, m):
        run(each, X)
    run.note("events", events)


@program
def descriptors(run: Runner) -> None:
    events = []

    class Data:
        def __set_name__(self, owner, name):
            self.name = name

        def __get__(self, one, owner=None):
            events.append(f"get {self.name} {one is None}")
            return 5 if one is None else one.__dict__.get(self.name, 6)

        def __set__(self, one, value):
            events.append(f"set {self.name}")
            one.__dict__[self.name] = value + 1

    class NonData:
        def __get__(self, one, owner=None):
            return 7

    class OnlySet:
        def __set__(self, one, value):
            raise AttributeError("never")

    class Method:
        def __get__(self, one, owner=None):
            return lambda x: x * 8

    class Thing:
        a, b, c, m = Data(), NonData(), OnlySet(), Method()

    class Child(Thing):
        b = 70

    def f(x):
        one, two = Thing(), Child()
        x = x + one.a + one.b + Thing.a + two.b
        one.a = 10
        one.b = 20
        one.__dict__["m"] = lambda x: x
        x = x + one.a + one.b + one.m(x) + (one.c is not None)
        return x

    def g(x):
        Thing().c = 3
        return x

    run(f, X)
    run(g, X)
    run.note("events", events)
    Thing.b = 700
    run(f, X)


@program
def slots(run: Runner) -> None:
    class Slotted:
        __slots__ = ("a", "b")

        def __init__(self, a):
            self.a = a

    class Child(Slotted):
        __slots__ = ("c",)

    class Open(Slotted):
        pass

    outside = Slotted(X)
    outside.b = 3

    def f(x):
        one = Child(2)
        one.c = 5
        other = Open(3)
        other.z = 4
        return x * one.a + one.c + other.a * other.z + outside.a * outside.b + hasattr(one, "b")

    def g(x):
        return x + Slotted(1).b

    def h(x):
        Slotted(1).z = 3
        return x

    run(f, X)
    outside.b = 4
    run(f, X)
    outside.a = X * 2
    run(f, X)
    run(g, X)
    run(h, X)
    del outside.b
    run(f, X)


@program
def metaclasses_and_class_tricks(run: Runner) -> None:
    class Meta(type):
        def __getattr__(cls, name):
            return len(name)

        def __call__(cls, *args):
            made = super().__call__(*args)
            made.extra = 4
            return made

        def __instancecheck__(cls, one):
            return one == 3

        def __len__(cls):
            return 6

        def __iter__(cls):
            return iter((1, 2))

        def __getitem__(cls, key):
            return key * 2

        def __contains__(cls, key):
            return True

        def __bool__(cls):
            return False

    class Made(metaclass=Meta):
        a = 1

        def __class_getitem__(cls, key):
            return 99

    class Liar:
        @property
        def __class__(self):
            return int

    def f(x):
        return x + Made.a + Made.abc + isinstance(3, Made) + isinstance(Liar(), int) + (type(Liar()) is int)

    def g(x):
        return x + list[int].__origin__([1, 2])[1]

    wanted = [
        lambda x: x + Made().extra,
        lambda x: x + isinstance(Made(), Made),
        lambda x: x + len(Made),
        lambda x: x + sum(Made),
        lambda x: x + Made[4],
        lambda x: x + (5 in Made),
        lambda x: x + (1 if Made else 2),
        lambda x: x + bool(Made),
    ]
    for each in (f, g, *wanted):
        run(each, X)


@program
def modules_of_python(run: Runner) -> None:
    space = types.ModuleType("space")
    space.scale = 3
    exec("def apply(x):\n    return x * scale", space.__dict__)

    def f(x):
        return space.apply(x) + space.scale

    run(f, X)
    space.scale = 4
    run(f, X)
    space.apply = torch.sin
    run(f, X)
    space.__getattr__ = lambda name: 12
    del space.scale
    run(f, X)


@program
def hashes_and_equality(run: Runner) -> None:
    class Key:
        def __init__(self, n):
            self.n = n

        def __hash__(self):
            return 1

        def __eq__(self, other):
            return self.n == other.n

    table = {Key(1): 10, Key(2): 20}

    def f(x):
        return x * table[Key(2)] + (Key(1) in table)

    def g(x):
        return x * len({Key(1), Key(1), Key(3)}) + {Key(1): 2}[Key(1)]

    def h(x):
        return x + [Key(1), Key(2)].index(Key(2)) + (Key(1) in [Key(2), Key(1)]) + [Key(1)].count(Key(1))

    for each in (f, g, h):
        run(each, X)
