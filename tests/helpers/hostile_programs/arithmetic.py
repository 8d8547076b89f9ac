"""Numbers that look alike, operators that refuse, in-place operations, conversions."""

from hostile_programs.observation import X, answering


def that_look_alike_as_arguments(run):
    def f(x, n):
        return x * n + n

    for n in (0, 0.0, -0.0, False, 1, 1.0, True, float("nan"), float("inf"), -1, 1 + 0j, 2**70, 0, 0.0, -0.0, False, 1):
        run(f, X, n)


def arithmetic_of_constants(run):
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
        a &= 63
        a ^= 2
        a >>= 1
        return x * sum(values) + a

    for a, b in ((5, 3), (5.5, 2), (True, 2), (-7, 3), (2, 2), (1, 0), (1.0, 0.0), (X, 2)):
        run(f, X, a, b)
    run(g, X, 5, 3)
    run(g, X, True, 2)


def operators_that_refuse(run):
    events = run.events

    def saying(event, answer):
        return lambda self, other: events.append(event) or answer

    Left = answering(
        __add__=saying("left add", NotImplemented),
        __mul__=lambda self, other: 3 if isinstance(other, int) else NotImplemented,
        __eq__=saying("left eq", NotImplemented),
    )
    Right = answering(
        __radd__=saying("right add", 7),
        __rmul__=11,
        __rsub__=13,
        __rtruediv__=NotImplemented,
        __eq__=saying("right eq", True),
    )
    Sub = answering(Left, __radd__=saying("sub first", 17))

    class InPlace(answering(__mul__=5, __matmul__=19, __neg__=23, __invert__=29, __getitem__=37, __index__=2)):
        n = 1

        def __iadd__(self, other):
            self.n += other
            return self

        def __imul__(self, other):
            return NotImplemented

    Whole, Real = answering(__int__=31), answering(__float__=3.5)

    def f(x):
        one = InPlace()
        one += 3
        x = x + one.n + one @ 2 + -one + ~one + one[1, 2:3, ...]
        one *= 2
        x = x + one + (Left() + Right()) + (Left() * 2) + (Left() * Right()) + (4 - Right()) + (Left() == Right())
        return x + (Left() + Sub()) + (Left() == 3) + (Left() != 3) + (2 * Right())

    run.each(
        f,
        lambda x: x + [1, 2, 3][InPlace()] + range(5)[InPlace()],
        lambda x: x + int(Whole()) + float(Real()),
        lambda x: Left() + 3,
        lambda x: 4 / Right(),
        lambda x: Left() < Left(),
        lambda x: x + Right(),
        lambda x: Left() * x,
    )
