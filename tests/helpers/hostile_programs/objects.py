"""Attributes by every way that Python knows: properties, descriptors, slots, ``__getattr__``, metaclasses, modules."""

import functools
import types

import torch
from torch import nn

from hostile_programs.observation import X, answering


def properties(run):
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
        x = x * a + mine.scale + mine.cached + mine.cached + outside.scale + getattr(outside, "scale", 9)
        return x + hasattr(one, "broken") + getattr(one, "broken", 4) + len(Lenient().broken)

    def written(x):
        one.broken = 2
        return x

    for each in (f, lambda x: x * one.broken, written):
        run(each, X)
    outside.scale = 7
    run(f, X)
    run.note("events", events)


def getattr_and_getattribute(run):
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
            return 42 if name == "fixed" else object.__getattribute__(self, name)

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

    def written(x):
        d = Writes()
        d.n = 4
        x = x * d.n
        del d.n
        return x + hasattr(d, "n")

    outside = Fallback(), Always(), Both()
    others = [
        lambda x: x + Always().fixed,
        lambda x: x + getattr(Both(), "fixed") + hasattr(Always(), "fixed"),
        lambda x: x + Fallback().nope,
        lambda x: x + Always().nope,
        lambda x: x + outside[0].abc + outside[1].there + outside[2].missing,
        lambda x: x + outside[1].fixed,
    ]
    for each in (f, written, *others):
        run(each, X)
    run.note("events", events)


def descriptors(run):
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

    class OnlySet:
        def __set__(self, one, value):
            raise AttributeError("never")

    class Thing:
        a, b, c, m = Data(), answering(__get__=7)(), OnlySet(), answering(__get__=lambda self, *of: abs)()

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

    run(f, X)
    run(g, X)
    run.note("events", events)
    Thing.b = 700
    run(f, X)


def slots(run):
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

    def written(x):
        Slotted(1).z = 3
        return x

    for each in (f, lambda x: x + Slotted(1).b, written):
        run(each, X)
    for name, value in (("b", 4), ("a", X * 2)):
        setattr(outside, name, value)
        run(f, X)
    del outside.b
    run(f, X)


def metaclasses_and_class_tricks(run):
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

    wanted = [
        lambda x: x + Made.a + Made.abc + isinstance(3, Made) + isinstance(Liar(), int) + (type(Liar()) is int),
        lambda x: x + list[int].__origin__([1, 2])[1],
        lambda x: x + Made().extra,
        lambda x: x + isinstance(Made(), Made),
        lambda x: x + len(Made) + sum(Made) + Made[4] + (5 in Made),
        lambda x: x + (1 if Made else 2) + bool(Made),
    ]
    for each in wanted:
        run(each, X)


def modules_of_python(run):
    space = types.ModuleType("space")
    space.scale = 3
    exec("def apply(x):\n    return x * scale", space.__dict__)

    def f(x):
        return space.apply(x) + space.scale

    run(f, X)
    for name, value in (("scale", 4), ("apply", torch.sin)):
        setattr(space, name, value)
        run(f, X)
    space.__getattr__ = lambda name: 12
    del space.scale
    run(f, X)


def attributes_of_torchs_modules(run):
    events = []

    class Lazy(nn.Module):
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

        @property
        def twice(self):
            return self.weight * 2

        @property
        def broken(self):
            return self.no_such_thing

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
    for each in (model, Missing(), Broken()):
        run(each, X)
    run.note("events", events)


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
