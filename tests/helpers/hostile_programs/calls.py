"""Arguments of all kinds, wrong calls, partials, methods, closures and recursion."""

from __future__ import annotations

import functools
import operator
from functools import partial, partialmethod

import torch

from hostile_programs.observation import Runner, program

X = torch.linspace(-1, 1, 6).reshape(2, 3)


def everything(a, b=2, /, c=3, *rest, d, e=5, **more):
    total = a * 1 + b * 10 + c * 100 + d * 1000 + e * 10000
    for place, each in enumerate(rest, 1):
        total = total + place * each
    for name in sorted(more):
        total = total + len(name) * more[name]
    return total


@program
def every_kind_of_argument(run: Runner) -> None:
    def f(x, way):
        if way == 0:
            return everything(x, d=1)
        if way == 1:
            return everything(x, 7, 8, 9, 10, d=x, e=1, f=2, gg=x)
        if way == 2:
            args, kwargs = (x, 4), {"d": 2, "z": 3}
            return everything(*args, 5, *[6, x], **kwargs, **{"y": 1})
        if way == 3:
            return everything(x, *(), c=5, d=6, **{})
        if way == 4:
            return everything(*(each for each in (x, 1, 2)), **dict(d=3))
        return everything(x, c=1, d=2, a=3, b=4)  # positional only names go to **more

    for way in range(6):
        run(f, X, way)


@program
def wrong_calls(run: Runner) -> None:
    def two(a, b):
        return a

    def named(a, *, k, l):
        return a

    def positional(a, b, /):
        return a

    class Maker:
        def __init__(self, a):
            self.a = a

        def method(self, a, *, k=1):
            return a

        @classmethod
        def of_class(cls, a):
            return a

        @staticmethod
        def static(a):
            return a

    wrong = [
        lambda x: two(x),
        lambda x: two(),
        lambda x: two(x, x, x),
        lambda x: two(x, b=1, c=2),
        lambda x: two(x, 1, b=2),
        lambda x: two(*[x, 1, 2, 3]),
        lambda x: two(x, **{"a": 1}),
        lambda x: named(x),
        lambda x: named(x, k=1),
        lambda x: named(x, 1, k=1, l=2),
        lambda x: positional(x, b=1),
        lambda x: positional(a=x, b=1),
        lambda x: Maker(),
        lambda x: Maker(x, 1),
        lambda x: Maker(x).method(),
        lambda x: Maker(x).method(x, 1),
        lambda x: Maker(x).method(x, j=1),
        lambda x: Maker.method(x),
        lambda x: Maker.of_class(),
        lambda x: Maker.static(x, 1),
        lambda x: two(**{1: x}),
        lambda x: two(*3),
        lambda x: two(**[1]),
        lambda x: two(x, **{"b": 1}, **{"b": 2}),
        lambda x: (lambda: x)(1),
        lambda x: partial(two, x)(),
        lambda x: partial(two, x)(1, 2),
        lambda x: partial(two, b=1)(x, 2),
        lambda x: isinstance(x),
        lambda x: len(),
        lambda x: len((), ()),
        lambda x: range(),
        lambda x: getattr(x),
        lambda x: enumerate(),
        lambda x: max(),
        lambda x: max([]),
        lambda x: dict(1),
        lambda x: torch.add(x),
        lambda x: torch.nn.functional.linear(x),
    ]
    for each in wrong:
        run(each, X)


@program
def wrong_calls_from_outside(run: Runner) -> None:
    def two(a, b=1, *, k=2):
        return a * b * k

    run(two)
    run(two, X, 1, 2)
    run(two, X, j=1)
    run(two, X, a=1)
    run(two, a=X, b=3, k=4)
    run(two, b=3, a=X)
    run(two, X)


@program
def defaults_that_change(run: Runner) -> None:
    def f(x, scale=2, sizes=[1, 2], *, shift=1):
        return x * scale + sizes[-1] + shift

    run(f, X)
    f.__defaults__ = (3, [1, 2])
    run(f, X)
    f.__defaults__[1].append(7)
    run(f, X)
    f.__kwdefaults__ = {"shift": 5}
    run(f, X)

    def inner(x, scale=2, *, shift=1):
        return x * scale + shift

    def g(x):
        return inner(x)

    run(g, X)
    inner.__defaults__ = (3,)
    run(g, X)
    inner.__kwdefaults__["shift"] = 4
    run(g, X)
    inner.__defaults__ = None
    run(g, X)


@program
def code_that_changes(run: Runner) -> None:
    def inner(x):
        return x * 2

    def other(x):
        return x * 3

    def f(x):
        return inner(x) + 1

    run(f, X)
    inner.__code__ = other.__code__
    run(f, X)


@program
def partials(run: Runner) -> None:
    class Thing:
        def method(self, x, y, scale=1):
            return x * scale + y

        doubled = partialmethod(method, scale=2)
        shifted = partialmethod(method, y=3)

    nested = partial(partial(everything, d=1), e=2)
    bound = partial(Thing().method, y=1)

    def f(x):
        a = nested(x, d=4) + bound(x) + partial(bound, scale=3)(x)
        return a + Thing().doubled(x, 1) + Thing().shifted(x) + partial(operator.mul, 2)(x)

    class Sub(partial):
        def __call__(self, *args, **kwargs):
            return super().__call__(*args, **kwargs) * 2

    def g(x):
        return Sub(operator.add, 1)(x)

    def h(x):
        p = partial(everything, x, d=1)
        return p.func(*p.args, **p.keywords) + p()

    for each in (f, g, h):
        run(each, X)
    bound.keywords["y"] = 2
    run(f, X)


@program
def a_partial_is_compiled(run: Runner) -> None:
    p = partial(everything, d=2)
    run(p, X)
    run(p, X, 3)


@program
def methods_and_functions_as_values(run: Runner) -> None:
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

    run(f, X)
    one.by = 5
    run(f, X)
    Scale.apply = lambda self, x: x - self.by
    run(f, X)
    one.apply = lambda x: x
    run(f, X)


@program
def a_method_is_compiled(run: Runner) -> None:
    class Scale:
        by = 2

        def apply(self, x, *, shift=0):
            return x * self.by + shift

    one = Scale()
    method = one.apply
    run(method, X)
    one.by = 3
    run(method, X, shift=1)


@program
def closures(run: Runner) -> None:
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
    run(f, X)
    scale = 5
    run(f, X)
    table["a"] = 9
    run(f, X)
    scale = 5.0
    run(f, X)
    scale = X
    run(f, X)


@program
def closures_of_the_function_itself(run: Runner) -> None:
    scale = 2

    def f(x):
        return x * scale

    for value in (2, 3, 3.0, True, X, None):
        scale = value
        run(f, X)
    scale = 2
    run(f, X)


@program
def a_cell_that_is_written(run: Runner) -> None:
    count = 0

    def f(x):
        nonlocal count
        count = count + 1
        return x * count

    run(f, X)
    run(f, X)
    run.note("count", count)


@program
def recursion(run: Runner) -> None:
    def power(x, n):
        return x if n == 0 else x * power(x, n - 1)

    def even(n):
        return True if n == 0 else odd(n - 1)

    def odd(n):
        return False if n == 0 else even(n - 1)

    def f(x, n):
        return power(x, n) + even(n)

    def endless(x):
        return endless(x)

    run(f, X, 3)
    run(f, X, 4)


@program
def decorated(run: Runner) -> None:
    def twice(function):
        @functools.wraps(function)
        def call(*args, **kwargs):
            return function(*args, **kwargs) * 2

        return call

    def scaled(by):
        return lambda function: lambda *args: function(*args) * by

    @twice
    @scaled(3)
    def inner(x, k):
        return x + k

    class Memo:
        def __init__(self, function):
            functools.update_wrapper(self, function)
            self.function, self.calls = function, 0

        def __call__(self, x):
            self.calls += 1
            return self.function(x) * self.calls

        def __get__(self, one, owner):
            return functools.partial(self, one)

    @Memo
    def counted(x):
        return x + 1

    def f(x):
        return inner(x, 1) + inner.__wrapped__(x, 2)

    def g(x):
        return counted(x) + counted(x)

    run(f, X)
    run(g, X)
    run.note("calls", counted.calls)


@program
def cached_functions(run: Runner) -> None:
    @functools.lru_cache
    def size(n):
        return n * 2

    @functools.cache
    def table(n):
        return tuple(range(n))

    def f(x, n):
        return x * size(n) + sum(table(n))

    run(f, X, 2)
    run(f, X, 2)
    run(f, X, 3)

    @functools.singledispatch
    def kind(value):
        return 1

    @kind.register
    def _(value: int):
        return 2

    def g(x):
        return x * kind(1) * kind("a")

    run(g, X)


@program
def functions_of_python_with_functions(run: Runner) -> None:
    def f(x):
        values = list(map(lambda a, b: a * b, (1, 2, 3), [4, 5]))
        kept = list(filter(lambda a: a > 4, values)) + list(filter(None, [0, 1, "", 2]))
        ordered = sorted([3, 1, 2], key=lambda a: -a) + sorted("bca", reverse=True).index("a") * [1]
        reduced = functools.reduce(lambda a, b: a + b * x, values, x)
        return reduced + sum(kept) + ordered[0] + max([x.ndim, 5], key=lambda a: -a) + min(1, 2, key=lambda a: -a)

    def g(x):
        a = any(each > 2 for each in (1, 2, 3)) + all(each for each in (1, 0))
        return x * a + sum([x, x * 2]) + sum(((1,), (2,)), ())[1] + divmod(7, 2)[0] + round(2.5) + pow(2, 3) + abs(-3)

    run(f, X)
    run(g, X)


@program
def many_arguments(run: Runner) -> None:
    def f(*args, **kwargs):
        return sum(args) + sum(kwargs[name] * (place + 1) for place, name in enumerate(kwargs))

    run(f, X, 1, 2.0, X, a=X, b=3)
    run(f, X, 1, 2.0, X, b=3, a=X)
    run(f, X, X, 2.0, X, a=X, b=3)
    run(f, X)


@program
def nested_arguments(run: Runner) -> None:
    def f(tree, scale=(1, {"k": 2})):
        (a, b), table = tree
        return {"sum": a + b * scale[1]["k"], "list": [table["x"], (a,)], "n": len(table)}

    run(f, ((X, X * 2), {"x": X}))
    run(f, ((X, X * 2), {"x": X, "y": 1}))
    run(f, [(X, X * 2), {"x": X}])
    run(f, ((X, 3), {"x": X}), scale=(1, {"k": 5}))
    run(f, ((X, X), {"x": X}))


@program
def lambdas_in_a_list(run: Runner) -> None:
    functions = [lambda x, k=k: x * k for k in range(3)] + [lambda x: x + k for k in range(3)]

    def f(x):
        for function in functions:
            x = function(x) + 1
        return x

    run(f, X)
    functions.append(torch.sin)
    run(f, X)
