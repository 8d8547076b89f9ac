"""External state that changes between calls: globals, builtins of one function, options of the compiler."""

import builtins
import sys
import types
from unittest import mock

from hostile_programs.observation import X

SCALE = 2
TABLE = {"a": 1, "b": [1, 2]}
HERE = sys.modules[__name__]


def helper(x):
    return x * SCALE


def globals_that_change(run):
    def f(x):
        return x * SCALE + TABLE["a"] + TABLE["b"][-1]

    def g(x):
        return helper(x)

    for value in (2, 3, 3.0, 2, X):
        with mock.patch.object(HERE, "SCALE", value):
            run.each(f, g)
    with mock.patch.dict(TABLE, a=5):
        run(f, X)
    with mock.patch.object(HERE, "helper", lambda x: x - 1):
        run(g, X)
    run(f, X)

    def missing(x):
        return x * NEW

    run(missing, X)
    with mock.patch.object(HERE, "NEW", 3, create=True):
        run(missing, X)
    run(missing, X)


class Globals(dict):
    """Globals that make up what is missing, which Python asks only where a name is looked up by a subclass."""

    def __missing__(self, key):
        return 5


def globals_and_builtins_of_a_functions_own(run):
    for own in ({"len": lambda values: 42, "sum": sum}, {}, builtins):
        space = {"__builtins__": own}
        exec("def f(x):\n    return x * len([1]) + sum([1, 2])", space)
        run(space["f"], X)
    for values in ({"SCALE": 3}, {}):
        run(types.FunctionType(helper.__code__, Globals(values, __builtins__=builtins)), X)


def options_of_the_compiler(run):
    for cache in ("no caching", "same input", "constant values", "symbolic values"):
        run.options = {"executors": [], "cache": cache}

        def f(x, n):
            return x * n + x.shape[0]

        for n in (2, 3, 2.5):
            run(f, X, n)
    run(f, X[0], 2)
