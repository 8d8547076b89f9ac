"""Branches, loops, match, with, walrus, chains of comparisons, generators."""

from __future__ import annotations

import contextlib

import torch

from hostile_programs.observation import Runner, program

X = torch.linspace(-1, 1, 6).reshape(2, 3)


@program
def truth_of_everything(run: Runner) -> None:
    events = []

    class Loud:
        def __init__(self, name, value):
            self.name, self.value = name, value

        def __bool__(self):
            events.append(self.name)
            return self.value

    class Sized:
        def __len__(self):
            events.append("len")
            return 0

    def f(x, values):
        for place, value in enumerate(values):
            if value:
                x = x + place
            if not value:
                x = x - place
            x = x + (1 if value else 2) + bool(value) + (not value)
            while value:
                x = x * 2
                break
        return x

    def g(x):
        a = Loud("a", True) and Loud("b", False) or Loud("c", True)
        b = not (Loud("d", False) or Loud("e", False))
        if Sized():
            x = x * 3
        return x + len(a.name) + b + (Sized() is not None)

    run(f, X, [0, 1, 0.0, -0.0, 2.5, "", "a", (), (0,), [], [0], {}, {0: 0}, None, True, False, set(), {0}])
    run(f, X, [float("nan"), float("inf"), 1j, 0j, range(0), range(2), b"", b"a", ..., int, X.dtype])
    run(g, X)
    run.note("events", events)


@program
def truth_of_what_is_outside(run: Runner) -> None:
    flags = {"a": [], "b": None, "c": 0}

    def f(x):
        if flags["a"]:
            x = x * 2
        if flags["b"] is None:
            x = x + 1
        return x if flags["c"] else -x

    run(f, X)
    flags["a"].append(1)
    run(f, X)
    flags["b"] = 0
    run(f, X)
    flags["c"] = 1
    run(f, X)
    flags["c"] = 2
    run(f, X)


@program
def chains_of_comparisons(run: Runner) -> None:
    events = []

    class Odd:
        def __init__(self, value):
            self.value = value

        def __lt__(self, other):
            events.append(f"{self.value} lt")
            return "yes" if self.value < other.value else ""

        def __eq__(self, other):
            return NotImplemented

        def __le__(self, other):
            return [self.value]

        __hash__ = None

    def f(x, n):
        a = 0 < n < 3 <= 5 != n
        b = n == 1 == True is not None
        c = Odd(1) < Odd(2) < Odd(0)
        d = (Odd(1) <= 3)[0] + (Odd(1) == 3) + (Odd(1) != 3)
        return x + a + b + len(c or "zzzz") + d + (n in (1, 2) != False) + (None is None is not False)

    for n in (1, 2, 1.0, True, 4):
        run(f, X, n)
    run.note("events", events)


@program
def matches(run: Runner) -> None:
    class Point:
        __match_args__ = ("a", "b")

        def __init__(self, a, b):
            self.a, self.b = a, b

    def f(x, value):
        match value:
            case 0 | 1:
                return x
            case int() as n if n > 5:
                return x * n
            case "text" | b"text":
                return x + 4
            case None | True:
                return x + 5
            case float(n):
                return x / n
            case _:
                return x + 100

    def of_mappings(x, value):
        match value:
            case {"k": k, **rest}:
                return x + k + len(rest)
            case _:
                return x

    def of_sequences(x, value):
        match value:
            case [a, [b, *c]]:
                return x + a * b + len(c)
            case [a, b]:
                return x - a
            case _:
                return x

    def of_classes(x, value):
        match value:
            case Point(1, b=y):
                return x * y
            case Point(a=z):
                return x - z
            case _:
                return x

    for value in (0, 1, 7, 3, "text", b"text", None, True, 2.5, "other"):
        run(f, X, value)
    for value in ({"k": 2, "l": 3}, {}, 3):
        run(of_mappings, X, value)
    for value in ([1, [2, 3, 4]], (1, 2), [1], 3):
        run(of_sequences, X, value)
    for value in (Point(1, 3), Point(2, 3), 3):

        def g(x, value=value):
            return of_classes(x, value)

        run(g, X)


@program
def loops(run: Runner) -> None:
    def f(x, n):
        for k in range(n):
            if k == 1:
                continue
            for j in range(k):
                if j == 2:
                    break
                x = x + j
            else:
                x = x * 2
            if k == 4:
                break
        else:
            x = x - 1
        while n > 0:
            n -= 1
            if n == 1:
                break
        else:
            x = x * 3
        return x + k

    def nothing(x):
        for k in ():
            x = x * k
        return x

    def unbound(x):
        for k in []:
            pass
        return x + k

    for n in (3, 6, 1):
        run(f, X, n)
    run(nothing, X)
    run(unbound, X)


@program
def walrus_and_lambda_and_global(run: Runner) -> None:
    def f(x):
        if (n := len([1, 2])) > 1 and (m := n * 2):
            x = x + n * m
        values = [y := 1, y**2, y + (z := 3)]
        while (n := n - 1) >= 0:
            x = x * 2
        return x + sum(values) + z + (lambda k=n: k)()

    run(f, X)


@program
def contexts(run: Runner) -> None:
    def f(x):
        with torch.no_grad():
            y = x * 2
        with torch.enable_grad():
            z = y + x
        return y, z

    def g(x):
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            return x * 3

    def h(x):
        with contextlib.nullcontext(2) as n:
            return x * n

    @torch.no_grad()
    def k(x):
        return x * 2

    def m(x):
        torch.set_grad_enabled(False)
        y = x * 2
        torch.set_grad_enabled(True)
        return y + x

    W = X.clone().requires_grad_()
    for each in (f, g, h, k, m):
        run(each, W)
    with torch.no_grad():
        run(f, W)
    run.note("grad", torch.is_grad_enabled())


@program
def autocast(run: Runner) -> None:
    W = torch.ones(3, 3, requires_grad=True)

    def f(x, w):
        y = x @ w
        with torch.autocast("cpu", dtype=torch.bfloat16):
            z = x @ w
        with torch.autocast("cpu", enabled=False):
            return y + z.float() + (x @ w)

    run(f, X, W)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        run(f, X, W)
    run(f, X, W)


@program
def generators(run: Runner) -> None:
    def numbers(n):
        k = 0
        while k < n:
            yield k
            k += 1

    def layers(x):
        for k in numbers(3):
            yield x * k

    def tree(t):
        if isinstance(t, tuple):
            for each in t:
                yield from tree(each)
        else:
            yield t

    def f(x):
        total = sum(layers(x))
        for k in tree((1, (2, (3, x)), 4)):
            total = total + k
        it = numbers(5)
        next(it)
        a = list(it)
        it.close()
        return (
            total
            + sum(a)
            + len([*numbers(2)])
            + max(numbers(4))
            + dict(zip(numbers(2), "ab", strict=True))[1].count("b")
        )

    run(f, X)


@program
def shapes_and_types_of_tensors(run: Runner) -> None:
    def f(x, y):
        if x.shape[0] == 2 and x.ndim == 2 and x.dtype == torch.float32 and not x.requires_grad:
            x = x * 2
        b, *rest = x.shape
        if isinstance(y, torch.Tensor) and isinstance(x, (int, torch.Tensor)):
            x = x + y
        elif y is None or isinstance(y, (float, int)):
            x = x + 1
        if type(x) is torch.Tensor or issubclass(type(x), torch.Tensor):
            x = x + 3
        if hasattr(x, "sin") and not hasattr(x, "no_such") and callable(x.cos):
            x = x.sin()
        return x.reshape(b * rest[0]) + x.size(0) + x.numel() + len(x) + x.size()[1] + x.device.type.count("c")

    run(f, X, X)
    run(f, X, None)
    run(f, X, 3)
    run(f, X, True)
    run(f, X.double(), X.double())
    run(f, torch.ones(3, 2), None)
    run(f, X.clone().requires_grad_(), None)


@program
def data_that_decides(run: Runner) -> None:
    def f(x):
        if x.sum() > 0:
            return x
        return -x

    def g(x):
        return x * int(x[0, 0])

    def h(x):
        return x * x.sum().item()

    for each in (f, g, h):
        run(each, X)


@program
def imports_inside(run: Runner) -> None:
    def f(x):
        import math
        from math import floor as down
        from os import path

        return x * math.pi + down(2.5) + len(path.join("a", "b"))

    run(f, X)


@program
def classes_made_inside(run: Runner) -> None:
    def f(x):
        class Inside:
            scale = 3

            def __init__(self, x):
                self.x = x

            def apply(self):
                return self.x * self.scale

        return Inside(x).apply()

    run(f, X)


@program
def prints_and_warnings(run: Runner) -> None:
    import warnings

    seen = []

    def f(x):
        warnings.warn("from inside", stacklevel=1)
        seen.append(1)
        return x * 2

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(f, X)
        run.note("warnings", [str(each.message) for each in caught if "inside" in str(each.message)])
    run.note("seen", seen)
