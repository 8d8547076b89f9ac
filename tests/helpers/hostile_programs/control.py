"""Branches, loops, match, with, walrus, chains of comparisons, generators."""

from __future__ import annotations

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
    run(f, X, True)
    run(f, X.double(), X.double())
    run(f, torch.ones(3, 2), None)
    run(f, X.clone().requires_grad_(), None)


@program
def imports_inside(run: Runner) -> None:
    def f(x):
        import math
        from math import floor as down
        from os import path

        return x * math.pi + down(2.5) + len(path.join("a", "b"))

    run(f, X)
