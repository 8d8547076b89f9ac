"""What a function is: each thing that is part of it, changed alone, and what is no part of it."""

import dis
import functools
import inspect
import sys
import types

import pytest
from described import described

from fusioncache.accelerators.programs.describe import Describer
from fusioncache.ir.errors import Declined

SOURCE = """
def make(shift):
    def scale(x, factor=2, *, offset=0.5):
        def inner(y):
            return y * 3
        try:
            return inner(x) * factor + offset + shift
        except ValueError:
            return {"a", "b", "c"}
    return scale
"""


def make(source: str = SOURCE, shift: object = 1, lines_before: int = 0, file: str = "here.py") -> types.FunctionType:
    """Makes the function, with globals that are those of this module."""
    found: dict[str, types.FunctionType] = {}
    exec(compile("\n" * lines_before + source, file, "exec"), globals(), found)
    return found["make"](shift)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("y * 3", "y * 4"),
        ("y * 3", "y + 3"),
        ("y * 3", "y * 3.0"),
        ("y * 3", "y * True"),
        ("factor=2", "factor=3"),
        ("factor=2", "factor=2.0"),
        ("factor=2", "factor"),
        ("offset=0.5", "offset=-0.5"),
        ("offset=0.5", "offset"),
        ("*, offset", "offset"),
        ("*, offset", "*rest, offset"),
        ("except ValueError", "except KeyError"),
        ('"c"', '"d"'),
        ("inner", "within"),
        ("(y)", "(z)"),
        ("def scale(x", "async def scale(x"),
        ("        try:\n", '        "Scales."\n        try:\n'),
        ("+ shift", ""),
        ("return inner(x) *", "yield inner(x) *"),
    ],
)
def test_one_change_of_the_source_is_a_difference(old, new):
    assert SOURCE.count(old)
    assert described(make(SOURCE.replace(old, new))) != described(make())


def test_where_a_function_stands_is_no_part_of_it():
    assert described(make(lines_before=7, file="elsewhere/there.py")) == described(make())
    assert described(make(SOURCE.replace("(x, factor", "(x: int, factor"))) == described(make())
    assert described(make("# a comment\n" + SOURCE)) == described(make())


def test_functions_that_share_a_cell_differ_from_those_that_do_not():
    def pair():
        count = 0
        return (lambda: count), (lambda: count)

    (first, second), (third, _) = pair(), pair()
    assert described([first, second]) != described([third, second])


def test_a_function_may_reach_itself():
    def loop(n):
        return loop(n - 1)

    assert described(loop) == described(loop)


def test_wrappers_are_looked_through():
    def wrap(function):
        @functools.wraps(function)
        def wrapper(*arguments):
            return function(*arguments)

        return wrapper

    assert described(wrap(make())) != described(wrap(make(SOURCE.replace("y * 3", "y * 4"))))
    for kind in (
        functools.lru_cache,
        functools.partial,
        staticmethod,
        classmethod,
        property,
        functools.cached_property,
    ):
        assert described(kind(make())) == described(kind(make()))
        assert described(kind(make())) != described(kind(make(SOURCE.replace("y * 3", "y * 4"))))
    assert described(functools.lru_cache(maxsize=3)(make())) != described(functools.lru_cache(maxsize=4)(make()))


def test_code_is_the_same_while_it_is_watched():
    function = make(shift=0)
    before = described(function)
    for _ in range(50):
        function(2)  # Python writes other instructions in the place of those that run often
    assert list(dis.get_instructions(function)) != list(dis.get_instructions(function, adaptive=True))
    assert described(function) == before
    sys.monitoring.use_tool_id(5, "a test")
    sys.monitoring.set_events(5, sys.monitoring.events.LINE | sys.monitoring.events.PY_RETURN)
    try:
        function(2)
        assert described(make(shift=0)) == described(function) == before
    finally:
        sys.monitoring.set_events(5, 0)
        sys.monitoring.free_tool_id(5)


def test_code_that_was_described_is_covered():
    describer = Describer()
    function, other = make(), make(SOURCE.replace("y * 3", "y * 4"))
    assert not describer.covers(function.__code__)
    describer.describe([function])
    nested = [constant for constant in function.__code__.co_consts if inspect.iscode(constant)]
    assert nested and all(map(describer.covers, [function.__code__, *nested]))
    assert not describer.covers(other.__code__)


def loose(**names: object) -> types.FunctionType:
    """Makes a function whose globals are nobody's."""
    namespace: dict[str, object] = dict(names)
    exec("def outer(x):\n    def inner():\n        return factor * x\n    return inner()", namespace)
    return namespace["outer"]


def test_globals_that_are_no_modules_are_part_of_the_function():
    assert described(loose(factor=1)) == described(loose(factor=1)) != described(loose(factor=2))
    assert described(loose(factor=1)) != described(loose())
    assert described(loose(factor=1, unused=1)) == described(loose(factor=1, unused=2))
    assert described(loose(factor=[1])) != described(loose(factor=[2]))


def test_globals_that_are_no_modules_are_covered():
    function, describer = loose(factor=1), Describer()
    assert not describer.covers_global(function.__globals__, "factor")
    describer.describe(function)
    assert describer.covers_global(function.__globals__, "factor")
    assert not describer.covers_global(function.__globals__, "unused")


def test_globals_of_a_module_are_no_part_of_the_function(monkeypatch):
    function = make(SOURCE.replace("y * 3", "y * SOURCE"))
    before = described(function)
    monkeypatch.setitem(globals(), "SOURCE", 5)
    assert described(function) == before
    assert not Describer().covers_global(function.__globals__, "SOURCE")


def test_whose_globals_a_function_uses_is_part_of_it():
    function = make()
    other = types.FunctionType(function.__code__, vars(functools), argdefs=(2,), closure=function.__closure__)
    other.__kwdefaults__, other.__module__ = function.__kwdefaults__, function.__module__
    assert other.__qualname__ == function.__qualname__
    assert described(other) != described(function)


def test_a_cache_that_hides_what_it_wraps_has_no_value():
    cached = functools.lru_cache(make())
    cached.__wrapped__ = len
    with pytest.raises(Declined, match="what it wraps is hidden"):
        described(cached)


def test_builtins_of_its_own_are_part_of_the_function():
    source = "def f(x):\n    return len(x)"
    plain, own = {}, {"__builtins__": {"len": max}}
    exec(source, plain)
    exec(source, own)
    other = {"__builtins__": {"len": min}}
    exec(source, other)
    assert len({described(namespace["f"]) for namespace in (plain, own, other)}) == 3
