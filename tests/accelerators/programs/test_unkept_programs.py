"""Programs that no other process could repeat or compare are not stored, and the reason names the cause."""

import abc
import ast
import builtins
import functools
import os
import random
import sys
import textwrap
import threading
import time
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy
import pytest
import torch
import torch.nn.functional as F
from recorded_reads import describe_key, record

from fusioncache import tracing
from fusioncache.accelerators.programs.recorder import Recorder
from fusioncache.ir.errors import Declined

X = torch.linspace(-1, 1, 8).reshape(2, 4)
pytestmark = pytest.mark.usefixtures("hooks")
READ_BY_PROGRAMS = (functools, os, random, threading, time, warnings, F)
CALLS: list[int] = []
COUNTS = {"calls": 0}
SEEN: set[int] = set()
TOTAL = 0
LOCK = threading.Lock()
ITERATOR = iter([1.0, 2.0, 3.0])
NAMES = {"b": 1.0}
NUMBERS = [1.0, 2.0]
LAYER = torch.nn.Identity()
HANDLE = LAYER.register_forward_hook(lambda *_: None)
SET, FLOATS, TEXTS = {8, 0}, {0.1, 0.2, 0.7}, {"a", "b"}
NAN = float("nan")
NANS, TUPLE_OF_NAN = {NAN}, (NAN,)
VARIABLE, ARRAY = TypeVar("VARIABLE", bound=int), numpy.ones(4)
WEIGHT = torch.nn.Parameter(torch.ones(4))
ONE = ANOTHER = types.SimpleNamespace(a=1)


# Classes that read the global NAMES when they are compared, called or searched for an attribute.
class Thing:
    factor = 1.0

    def __eq__(self, other):
        return bool(NAMES)

    __hash__ = object.__hash__

    def __index__(self):
        return int(NAMES["b"])

    def __format__(self, spec):
        return str(NAMES["b"])

    @property
    def hidden(self):
        if NAMES["b"] != 1.0:
            raise AttributeError
        return 1.0


class Asking(type):
    def __instancecheck__(cls, instance):
        return bool(NAMES["b"] == 1.0)

    def __ne__(cls, other):
        return bool(NAMES["b"] == 1.0)


class Hashing(type):
    def __hash__(cls):
        return 1

    def __eq__(cls, other):
        return cls is other or bool(NAMES["b"] == 1.0)


class Abstract(abc.ABC):
    @abc.abstractmethod
    def forward(self): ...


class Hooked(Abstract):
    @classmethod
    def __subclasshook__(cls, other):
        return bool(NAMES["b"] == 1.0)


Asked, Key, OtherKey = Asking("Asked", (), {}), Hashing("Key", (), {}), Hashing("OtherKey", (), {})


class Pretender(metaclass=Hashing):  # is equal to the class of lists
    def __iter__(self):
        yield NAMES["b"]


class Absent:
    def __getattr__(self, name):
        if name == "there" and NAMES["b"] == 1.0:
            return 1.0
        raise AttributeError(name)


class Cached:
    @functools.cached_property
    def number(self):
        return NAMES["b"] * 2


THING, OTHER, ABSENT, CACHED, PRETENDER = Thing(), Thing(), Absent(), Cached(), Pretender()


@functools.lru_cache
def remembered(number):
    return number * NAMES["b"]


def helper(number):
    """Depends on a global."""
    return number * NAMES["b"]


BEFORE, HERE = "of an object that existed before tracing", "test_unkept_programs"
PRIOR = "that existed before tracing"
NO_ORDER = "calls set.__iter__, and sets have no order of their own"
PROGRAMS = {
    # lasting side effects
    "CALLS.append(1)": f"calls list.append {BEFORE}",
    "COUNTS['calls'] = 1": f"calls dict.__setitem__ {BEFORE}",
    "SEEN.symmetric_difference_update({1})": f"calls set.symmetric_difference_update {BEFORE}",
    "global TOTAL; TOTAL = 3": "assigns to the global TOTAL",
    "Thing.factor = 2.0": "calls type.__setattr__",
    "builtins.unkept = 1": "calls module.__setattr__",
    "THING.note = 1": f"sets an attribute of a {HERE}.Thing {PRIOR}",
    "helper.note = 1": f"sets an attribute of a function {PRIOR}",
    "x * next(ITERATOR)": f"the global {HERE}.ITERATOR has no value to compare",
    "x * CACHED.number": f"cached_property.__get__ calls dict.__setitem__ {BEFORE}",
    "x * remembered(2.0)": "calls _lru_cache_wrapper.__call__, which remembers results",
    # values and effects outside of the process
    "x * time.time()": "calls time.time",
    "x * random.random()": "random.random has no value to compare",
    "x if os.path.exists(os.devnull) else x + 1": "exists calls posix.stat",
    "print('traced')": "calls print",
    "warnings.warn('traced', stacklevel=1)": "calls _warnings.warn",
    "with LOCK: x = x * 2": f"the global {HERE}.LOCK has no value to compare",
    # Interpreted code may wait in vain for a thread that it starts, because it has copies of flags.
    "threading.Thread(target=len, args=((),))": "the global threading._counter has no value to compare",
    "import this": "imports this",
    # decisions by code of objects, or by their addresses
    "x if id(x) else x + 1": "calls id",
    "x if hash('text') % 2 else x + 1": "calls hash",
    "x if 'text'.__hash__() % 2 else x + 1": "calls str.__hash__",
    "x if THING == OTHER else x + 1": f"compares a {HERE}.Thing",
    "x if ONE is ANOTHER else x + 1": "compares a types.SimpleNamespace and a types.SimpleNamespace by identity",
    "x if THING in [OTHER] else x + 1": f"compares a {HERE}.Thing",
    "x[::THING]": "calls thunder.core.proxies.TensorProxy.__getitem__ with a slice",
    "x * {THING: 2}[THING]": f"uses a {HERE}.Thing as a key",
    "x * len({Key: 1, OtherKey: 2})": f"uses a {HERE}.Hashing as a key",
    "x if Asked != Thing else x + 1": f"compares a {HERE}.Asking",
    "x * sum(PRETENDER)": f"calls sum with a {HERE}.Pretender",
    "x * sum({1.0}.union(PRETENDER))": f"calls set.union with a {HERE}.Pretender",
    "x if f'{THING}' else x + 1": f"calls format with a {HERE}.Thing",
    "x if '{a}'.format(a=THING) else x + 1": f"calls str.format with a {HERE}.Thing",
    "x if hasattr(THING, 'hidden') else x + 1": f"asks for what {HERE}.Thing has as hidden",
    "x if hasattr(ABSENT, 'there') else x + 1": f"asks for {HERE}.Absent.__getattr__",
    "x if isinstance(x.shape, Asked) else x + 1": f"asks {HERE}.Asking.__instancecheck__",
    "x if isinstance(THING, Abstract) else x + 1": f"asks {HERE}.Hooked.__subclasshook__",
    # functions that are called without being observed
    "x * sorted([2.0, 1.0], key=lambda number: number * NAMES['b'])[0]": "calls sorted with a function",
    "for number in map(helper, [1.0]): x = x * number": "calls map.__new__, which Thunder runs unwatched: a compre",
    "eval('x * 2')": "calls eval",
    "exec('y = x')": "calls exec",
    "class Local: factor = 2": "calls __build_class__",
    # namespaces and attributes that are read as a whole
    "x * globals()['NAMES']['b']": "calls globals",
    "x * helper.__globals__['NAMES']['b']": "asks for __globals__",
    "x * sys.modules[__name__].NAMES['b']": "reads sys.modules",
    "x * len(F.__dict__)": "asks for all names of the module torch.nn.functional",
    "x * len(vars(Thing))": "calls vars",
    "x * len(vars(HANDLE))": "asks for all attributes of a torch.utils.hooks.Removable",
    "x * next(iter(LAYER._forward_hooks))": "asks for _forward_hooks, in which hooks have numbers",
    "x * len(vars(LAYER))": "asks for __dict__, in which hooks have numbers that count those of",
    "x * HANDLE.id": "id of torch.utils.hooks.RemovableHandle has no value to compare: it counts the hooks",
    "x * len(vars(os.environ)['_data'])": "reads the whole environment",
    "x * len(os.environ)": "_Environ.__len__ reads the whole environment",
    "x * sys._getframe().f_lineno": "calls sys._getframe",
    "x * len(helper.__annotations__)": "asks for __annotations__",
    "x * len(helper.__doc__)": "asks for __doc__",
    "x * helper.__code__.co_firstlineno": "asks for __code__",
    # sets
    "for number in SET: x = x * number + 1": NO_ORDER,
    "x * sum(FLOATS)": "calls sum with a set",
    "for number in {*SET, 16}: x = x * number + 1": NO_ORDER,
    "x * {*SET}.pop()": "calls set.pop, and sets have no order of their own",
    "numbers = set(); numbers.update(SET); x = x * [*numbers][0]": NO_ORDER,
    "x * sum(number + 1 for number in SET)": NO_ORDER,
    "x * len(','.join(TEXTS))": "calls str.join with a set",
    "x * 2 if THING in SET else x": f"calls set.__contains__ with a {HERE}.Thing",
    "x * 2 if NAN in NANS else x": "calls set.__contains__ with a NaN",
    "x * 2 if (NAN,) == TUPLE_OF_NAN else x": "compares containers with a NaN in them",
    "x * 2 if slice(NAN) == slice(NAN) else x": "compares containers with a NaN in them",
    # attributes that are not compared
    "x * len(VARIABLE.__constraints__)": "asks for __constraints__",
    "x if VARIABLE.__bound__ is int else x + 1": "asks for __bound__",
    "x * bool(ARRAY.base)": "asks for base of a numpy.ndarray",
    "x * bool(ARRAY.dtype.metadata)": "asks for metadata of a numpy.dtype",
    "x * bool(x.grad)": "asks for the gradient of a tensor",
    "x * bool(WEIGHT.grad)": "asks for the gradient of a tensor",
    "x if hasattr(WEIGHT, 'grad') else x + 1": "asks for the gradient of a tensor",
}
"""Expressions and statements for a function of ``x``, each with the start of its reason without the name ``traced``."""

if sys.version_info >= (3, 13):  # where Thunder interprets the one and refuses the other
    del PROGRAMS["x if f'{THING}' else x + 1"], PROGRAMS["builtins.unkept = 1"]


@pytest.fixture(autouse=True)
def _take_back() -> Iterator[None]:
    yield
    sys.modules.pop("this", None)
    vars(builtins).pop("unkept", None)
    Thing.factor = 1.0
    CALLS.clear()
    NUMBERS[:] = [1.0, 2.0]


def make_program(text: str) -> Callable[..., Any]:
    """Returns a function of ``x`` that returns an expression, or executes statements and returns ``x``."""
    body = f"return {text}" if text.startswith(("x", "eval")) else f"{ast.unparse(ast.parse(text))}\nreturn x"
    names: dict[str, Any] = {}
    exec("def traced(x):\n" + textwrap.indent(body, "    "), globals(), names)
    return names["traced"]


def reason(function: Any) -> str:
    with pytest.raises(Declined) as refused:
        record(function, X).reads()
    return str(refused.value)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("text", PROGRAMS)
def test_it_is_not_kept(text):
    assert reason(make_program(text)).removeprefix("traced ").startswith(PROGRAMS[text])


def make_counter() -> Callable[..., Any]:
    count = 0

    def counter(x):
        nonlocal count
        count += 1
        return x * count

    return counter


class Counting(torch.nn.Module):
    def forward(self, x):
        self.calls.append(1)
        return x


def test_what_counts_its_calls_is_not_kept():
    assert reason(make_counter()).endswith("counter assigns to count, a variable of a function around it")
    counting = Counting()
    counting.calls = []
    assert reason(counting).startswith("Counting.forward calls list.append")


@pytest.mark.parametrize("after", [[1.0, 2.0, 3.0], []])
def test_what_changed_after_it_was_read_is_not_kept(after):
    recorder = record(make_program("x * sum(NUMBERS)"), X)
    NUMBERS[:] = after
    with pytest.raises(Declined, match="NUMBERS changed while it was used"):
        recorder.reads()


def test_nothing_is_kept_of_what_was_not_observed_or_raised():
    tracing.uninstall()
    try:
        assert reason(torch.nn.ReLU()) == "Thunder's interpreter could not be observed"
    finally:
        tracing.install()
    with Recorder(describe_key(None)).observing() as recorder:
        pass
    with pytest.raises(Declined, match="its tracing could not be observed"):
        recorder.reads()
    recorder = Recorder(describe_key(None))
    with pytest.raises(ZeroDivisionError), recorder.observing():
        _ = 1 / 0
    with pytest.raises(Declined, match="an exception was raised"):
        recorder.reads()
