"""What is outside and changes between calls: globals, builtins of a function's own, options of the compiler."""

from __future__ import annotations

import builtins
import sys
from unittest import mock

import torch

from hostile_programs.observation import Runner, program

X = torch.linspace(-1, 1, 6).reshape(2, 3)
SCALE = 2
TABLE = {"a": 1, "b": [1, 2]}


def helper(x):
    return x * SCALE


@program
def globals_that_change(run: Runner) -> None:
    def f(x):
        return x * SCALE + TABLE["a"] + TABLE["b"][-1]

    def g(x):
        return helper(x)

    module = sys.modules[__name__]
    for value in (2, 3, 3.0, 2):
        with mock.patch.object(module, "SCALE", value):
            run(f, X)
            run(g, X)
    with mock.patch.dict(TABLE, a=5):
        run(f, X)
    with mock.patch.object(module, "helper", lambda x: x - 1):
        run(g, X)
    with mock.patch.object(module, "SCALE", X):
        run(f, X)
    run(f, X)


@program
def globals_that_are_missing_or_new(run: Runner) -> None:
    def f(x):
        return x * NEW

    module = sys.modules[__name__]
    run(f, X)
    with mock.patch.object(module, "NEW", 3, create=True):
        run(f, X)
        run(f, X)
    run(f, X)


@program
def builtins_of_a_functions_own(run: Runner) -> None:
    space = {"__builtins__": {"len": lambda values: 42, "sum": sum}}
    exec("def f(x):\n    return x * len([1]) + sum([1, 2])", space)
    run(space["f"], X)
    empty = {"__builtins__": {}}
    exec("def f(x):\n    return x * len([1])", empty)
    run(empty["f"], X)
    whole = {"__builtins__": builtins}
    exec("def f(x):\n    return x * len([1])", whole)
    run(whole["f"], X)


class Globals(dict):
    """Globals that make up what is missing, which Python asks only where a name is looked up by a subclass."""

    def __missing__(self, key):
        return 5


@program
def globals_of_a_subclass(run: Runner) -> None:
    import types

    def f(x):
        return x * SCALE

    space = Globals(SCALE=3, __builtins__=builtins)
    run(types.FunctionType(f.__code__, space), X)
    run(types.FunctionType(f.__code__, Globals(__builtins__=builtins)), X)


@program
def options_of_the_compiler(run: Runner) -> None:
    def f(x, n):
        return x * n + x.shape[0]

    for cache in ("no caching", "same input", "constant values"):
        run.options = {"executors": [], "cache": cache}

        def g(x, n):
            return f(x, n)

        run(g, X, 2)
        run(g, X, 3)
    run.options = {"executors": [], "cache": "symbolic values"}

    def h(x, n):
        return x * n + n

    run(h, X, 2)
    run(h, X, 3)
    run(h, X, 2.5)
    run(h, torch.ones(4), 2)
