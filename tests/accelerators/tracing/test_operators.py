"""Binary operations computed at once: the same traces, results and errors."""

import operator

import pytest
import thunder
import torch
from same_traces import OWN, trace_with

from fusioncache import tracing
from fusioncache.thunder_adapter.installation import TRACING
from fusioncache.thunder_adapter.shortcuts import calls

X = torch.linspace(-1, 1, 4)
WHOLE = torch.arange(1, 5)
PAIRS = ((3, -2), (2.5, True), (1, 0), (2j, 3), (10**400, 1.5))
SYMBOLS = [symbol for symbol, _, _ in calls.OPERATIONS]


class Left:
    def __add__(self, other):
        return NotImplemented

    def __mul__(self, other):
        raise KeyError("no product")

    def __isub__(self, other):
        return other * 2


class Right:
    def __radd__(self, other):
        return 4

    def __rmul__(self, other):
        return 5


class Number(int):
    def __radd__(self, other):
        return 100


def make(statement):
    """Makes functions that compute with a pair of values, one for each symbol."""
    made = []
    for symbol in SYMBOLS:
        namespace: dict = {}
        exec(f"def compute(a, b):\n    {statement.replace('?', symbol)}\n    return a", namespace)
        made.append(namespace["compute"])
    return made


COMPUTING, CHANGING = make("a = a ? b"), make("a ?= b")


def of_numbers(x, compute, pairs):
    found = ""
    for a, b in pairs:
        try:
            found += repr(compute(a, b))
        except Exception as error:
            found += type(error).__name__ + str(error)
    return x * len(found) + sum(ord(each) for each in found[:40])


def of_all_kinds(x):
    y = x + 1 + Right() * 2 + (Left() + Right()) + (3 + Number(2)) + len(())
    y += x
    y -= 2
    y = 2 - y * 3 / x**2 // 1
    three, name = (3,), "a"
    both = (three + three, [y, *three], name + "b", name * 3, [1] * 2, {"a": 1} | {"b": 2})
    left = Left()
    left -= y
    try:
        return Left() * 2
    except KeyError as error:
        return left @ x + len(both) + both[0][0] + len(str(error))


def nothing_fits(x):
    return x + Left()


def unsupported(x):
    return x + (Left() + 1)


def no_number(x):
    return x + "a"


def of_the_inputs(x, n, scale):
    n += 2
    return x * (n * scale) + n**2 - x.shape[0] // 2


@pytest.mark.parametrize("compute", [COMPUTING[2], CHANGING[1], CHANGING[8]])
def test_numbers_are_computed_as_before(compute):
    def program(x):
        return of_numbers(x, compute, PAIRS)

    own = trace_with(OWN, program, X)
    assert trace_with([*OWN, "operators"], program, X) == own
    assert len(own) > 2


def test_an_error_has_no_other_behind_it():
    def program(x, n):
        return x * (1 / n)

    tracing.install(["operators"])
    with pytest.raises(ZeroDivisionError, match="division by zero") as caught:
        thunder.jit(program)(X, 0)
    tracing.uninstall()
    assert caught.value.__context__ is None


def test_tensors_are_computed_as_before():
    def program(x, y):
        for i in (0, 2, 5, 8, 10, 11):
            x = COMPUTING[i](x, 2) + COMPUTING[i](2.5, x) + COMPUTING[i](x, y)
        for i in (1, 3, 7, 9, 12):
            y = COMPUTING[i](y, y) + COMPUTING[i](y, 3)
        for i in (0, 5, 10, 11):
            x = CHANGING[i](x + 0, y)
        return x + y

    own = trace_with(OWN, program, X, WHOLE)
    assert trace_with([*OWN, "operators"], program, X, WHOLE) == own
    assert len(own) > 2


PROGRAMS = [
    *((each, (X,)) for each in (of_all_kinds, nothing_fits, unsupported, no_number)),
    (of_the_inputs, (X, 3, 0.5)),
]


@pytest.mark.parametrize(("program", "args"), PROGRAMS)
def test_traces_and_errors_stay_the_same(program, args):
    own = trace_with(OWN, program, *args)
    assert trace_with([*OWN, "operators"], program, *args) == own
    assert trace_with(TRACING, program, *args) == own


def test_the_operations_are_those_of_the_interpreter():
    """In the order of their numbers."""
    names = [each.name.lower() for each in thunder.core.interpreter.BINARY_OP]
    ours = [name for _, name, _ in calls.OPERATIONS]
    assert [name for name in names if name != "subscr"] == ours + [f"i{name}" for name in ours]
    for symbol, name, compute in calls.OPERATIONS:
        assert compute is getattr(operator, f"__{name}__")
        assert name == "matmul" or compute(5, 2) == eval(f"5 {symbol} 2")
