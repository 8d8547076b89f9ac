"""Arguments of all kinds, wrong calls, partials, methods and closures."""

import operator
from functools import partial, partialmethod

import torch

from hostile_programs.observation import X


def everything(a, b=2, /, c=3, *rest, d, e=5, **more):
    total = a * 1 + b * 10 + c * 100 + d * 1000 + e * 10000
    for place, each in enumerate(rest, 1):
        total = total + place * each
    for name in sorted(more):
        total = total + len(name) * more[name]
    return total


def every_kind_of_argument(run):
    def spread(x):
        args, kwargs = (x, 4), {"d": 2, "z": 3}
        return everything(*args, 5, *[6, x], **kwargs, **{"y": 1})

    run.each(
        spread,
        lambda x: everything(x, d=1),
        lambda x: everything(x, 7, 8, 9, 10, d=x, e=1, f=2, gg=x),
        lambda x: everything(x, *(), c=5, d=6, **{}),
        lambda x: everything(*(each for each in (x, 1, 2)), **dict(d=3)),
        lambda x: everything(x, c=1, d=2, a=3, b=4),  # positional only names go to **more
    )
    run(lambda x, *rest, **more: everything(x, *rest, **more), X, 4, d=2, z=3)


def two(a, b):
    return a


class Maker:
    def __init__(self, a):
        self.a = a

    def method(self, a, *, k=1):
        return a


def wrong_calls(run):
    run.each(
        lambda x: two(x, x, x),
        lambda x: (lambda a, /: a)(a=x),
        lambda x: everything(x),
        lambda x: Maker(),
        lambda x: Maker(x).method(x, j=1),
        lambda x: Maker(x).method(x, 1, k=1),
        lambda x: two(**{1: x}),
        lambda x: two(*3),
        lambda x: two(**[1]),
        lambda x: two(x, **{"b": 1}, **{"b": 2}),
        lambda x: partial(two, x)(),
        lambda x: partial(two, b=1)(x, 2),
        lambda x: len(),
        lambda x: max([]),
        lambda x: torch.nn.functional.linear(x),
    )


def partials(run):
    class Thing:
        def method(self, x, y, scale=1):
            return x * scale + y

        doubled = partialmethod(method, scale=2)
        shifted = partialmethod(method, y=3)

    class Sub(partial):
        def __call__(self, *args, **kwargs):
            return super().__call__(*args, **kwargs) * 2

    nested = partial(partial(everything, d=1), e=2)
    bound = partial(Thing().method, y=1)

    def f(x):
        a = nested(x, d=4) + bound(x) + partial(bound, scale=3)(x) + Sub(operator.add, 1)(x)
        a = a + Thing().doubled(x, 1) + Thing().shifted(x) + partial(operator.mul, 2)(x)
        p = partial(everything, x, d=1)
        return a + p.func(*p.args, **p.keywords) + p()

    run(f, X)
    bound.keywords["y"] = 2
    run(f, X)


def methods_and_functions_as_values(run):
    class Scale:
        def __init__(self, by):
            self.by = by

        def apply(self, x):
            return x * self.by

        def __call__(self, x, k=1):
            return x + self.by * k

        @classmethod
        def make(cls, by):
            return cls(by)

        @staticmethod
        def twice(x):
            return x * 2

    one = Scale(3)

    def f(x):
        method = one.apply
        x = method(x) + Scale.apply(one, x) + one(x, k=2) + Scale.make(4).apply(x) + one.make(1)(x)
        x = x + Scale.twice(x) + one.twice(x) + method.__func__(method.__self__, x)
        return x + sum(function(x) for function in (torch.sin, operator.neg, one, one.apply, abs))

    changes = [(one, "by", 5), (Scale, "apply", lambda self, x: x - self.by), (one, "apply", lambda x: x)]
    run(f, X)
    for change in changes:
        setattr(*change)
        run(f, X)


def closures(run):
    scale, table = 2, {"a": 1}

    def outer(n):
        count = n

        def inner(x):
            nonlocal count
            count += 1
            return x * scale + count + table["a"]

        return inner

    def f(x):
        inner = outer(3)
        return inner(x) + inner(x)

    run(f, X)
    for value in (2, 5, 5.0, X):
        scale = value
        run(f, X)
    table["a"] = 9
    run(f, X)
