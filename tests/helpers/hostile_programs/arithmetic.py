"""Numbers that look alike, operators that refuse, in-place operations, conversions."""

from __future__ import annotations

import torch

from hostile_programs.observation import Runner, program

X = torch.linspace(-1, 1, 6).reshape(2, 3)
LOOK_ALIKE = (0, 0.0, -0.0, False, 1, 1.0, True, float("nan"), float("inf"), -1, 1 + 0j, 2**70)


@program
def that_look_alike_as_arguments(run: Runner) -> None:
    def f(x, n):
        return x * n + n

    for n in (*LOOK_ALIKE, *LOOK_ALIKE[:5]):
        run(f, X, n)


@program
def arithmetic_of_constants(run: Runner) -> None:
    def f(x, a, b):
        values = [a + b, a - b, a * b, a / b, a // b, a % b, a**b, -a, +a, abs(-a), divmod(a, b)[1]]
        values += [a < b, a <= b, a == b, a != b, a > b, a >= b, a is b, min(a, b), max(a, b), round(a / b, 2)]
        return x * sum(values)

    def g(x, a, b):
        values = [a & b, a | b, a ^ b, a << b, a >> b, ~a, not a, int(a), float(b), complex(a, b).imag]
        a += b
        a -= 1
        a *= 2
        a //= 1
        a **= 2
        a %= 7
        a <<= 1
        a |= 8
        return x * sum(values) + a

    for a, b in ((5, 3), (5.5, 2), (True, 2), (-7, 3), (2, 2)):
        run(f, X, a, b)
    run(g, X, 5, 3)
    run(g, X, True, 2)
    run(f, X, 1, 0)
    run(f, X, 1.0, 0.0)
    run(f, X, X, 2)


@program
def operators_that_refuse(run: Runner) -> None:
    events = []

    class Left:
        def __add__(self, other):
            events.append("left add")
            return NotImplemented

        def __mul__(self, other):
            return 3 if isinstance(other, int) else NotImplemented

        def __eq__(self, other):
            events.append("left eq")
            return NotImplemented

        __hash__ = object.__hash__

    class Right:
        def __radd__(self, other):
            events.append("right add")
            return 7

        def __rmul__(self, other):
            return 11

        def __rsub__(self, other):
            return 13

        def __rtruediv__(self, other):
            return NotImplemented

        def __eq__(self, other):
            events.append("right eq")
            return True

        __hash__ = object.__hash__

    class Sub(Left):
        def __radd__(self, other):
            events.append("sub first")
            return 17

    class InPlace:
        def __init__(self):
            self.n = 1

        def __iadd__(self, other):
            self.n += other
            return self

        def __imul__(self, other):
            return NotImplemented

        def __mul__(self, other):
            return 5

        def __matmul__(self, other):
            return 19

        def __neg__(self):
            return 23

        def __invert__(self):
            return 29

        def __index__(self):
            return 2

        def __int__(self):
            return 31

        def __float__(self):
            return 3.5

        def __getitem__(self, key):
            return 37

    def f(x):
        one = InPlace()
        one += 3
        x = x + one.n + one @ 2 + -one + ~one + one[1, 2:3, ...]
        one *= 2
        return x + one

    def g(x):
        x = x + (Left() + Right()) + (Left() * 2) + (Left() * Right()) + (4 - Right()) + (Left() == Right())
        return x + (Left() + Sub()) + (Left() == 3) + (Left() != 3) + (2 * Right())

    def added(x):
        return Left() + 3

    def divided(x):
        return 4 / Right()

    def ordered(x):
        return Left() < Left()

    def with_tensor(x):
        return x + Right()

    def with_tensor_first(x):
        return Left() * x

    def index(x):
        return x + [1, 2, 3][InPlace()] + range(5)[InPlace()]

    def converted(x):
        return x + int(InPlace()) + float(InPlace())

    for each in (f, g, index, converted, added, divided, ordered, with_tensor, with_tensor_first):
        run(each, X)
    run.note("events", events)
