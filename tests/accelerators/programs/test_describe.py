"""Texts of a describer: different values have different ones, equal values equal ones, and no code of a value runs."""

import collections
import dataclasses
import enum
import functools
import io
import itertools
import logging
import math
import operator
import os
import pathlib
import re
import threading
import types
import weakref

import numpy as np
import pytest
import thunder
import torch
from described import Box, described

from fusioncache.accelerators.programs.describe import Describer
from fusioncache.ir.errors import Declined


class Slots:
    __slots__ = ("first", "second")


def derive(base):
    return type(f"Own{base.__name__}", (base,), {"__module__": __name__})


OtherBox, Rare, Named, Count, Share, Wave, Raw, Word, Group, Row, Queue, Sums, Lazy, Part = map(
    derive,
    (
        *(Box, list, dict, int, float, complex, bytes, str, frozenset, tuple),
        *(collections.deque, collections.defaultdict, property, functools.partial),
    ),
)


def first_function():
    return 1


def second_function():
    return 2


def close_over(content):
    return lambda: content


def set_on(value, **attributes):
    """Sets these attributes of a value, and returns it."""
    for name, content in attributes.items():
        setattr(value, name, content)
    return value


def make_function(**attributes):
    return set_on(types.FunctionType(first_function.__code__, globals()), **attributes)


def enumerate_anew():
    return enum.Enum("Made", "RED").RED


Pair = collections.namedtuple("Pair", "first second")
OtherPair = collections.namedtuple("OtherPair", "first second")


@dataclasses.dataclass(frozen=True)
class Settings:
    width: int = 1
    name: str = "a"


class Color(enum.Enum):
    RED = 1
    GREEN = 2


class Level(enum.IntEnum):
    LOW = 1


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


def twice(item):
    return [item, item]


def link(is_same):
    box = Box(a=1)
    return [box, weakref.ref(box if is_same else KEPT)]


def pair_up(is_shared):
    """Returns functions that share a cell or do not."""
    one, other = close_over(1), close_over(1)
    return [one, types.FunctionType(one.__code__, globals(), closure=(one if is_shared else other).__closure__)]


def make_loop():
    def loop(n):
        return loop(n - 1)

    return loop


def make_data(**fields):
    return dataclasses.make_dataclass("Data", [(name, int, value) for name, value in fields.items()])


def decorate(function):
    return functools.wraps(function)(lambda *given: function(*given))


KEPT = Box(a=1)
WORDS = ["one", "other"] * 2500
FIELDS = {"a": 1}, {"a": 2}, {"b": 1}, {"a": 1, "b": 2}


def around(last):
    items = [last]
    items.append(items)
    return items


def make_values() -> list[object]:
    """Returns new values, no two of which are equal."""
    return [
        *(1, 1.0, True, "1", b"1", 1j, 0, 0.0, -0.0, False, "", b"", None, ..., 2, math.inf, -math.inf),
        *(math.nan, -math.nan, complex(0, math.nan), complex(0, -math.nan)),
        *(complex(0.0, -0.0), complex(-0.0, 0.0), 1e300, 10**400, 10**400 + 1, NotImplemented, "a b", "a  b", "'a'"),
        *("x" * 300, "x" * 301, "y" * 300, b"x" * 300, b"y" * 300, range(10**5000)),
        *(torch.float32, torch.float16, torch.strided, torch.channels_last, torch.finfo(torch.float16)),
        *(torch.device("cpu"), torch.device("cuda"), torch.device("cuda:0"), torch.iinfo(torch.int8), torch.Size([1])),
        *(range(3), range(0, 3, 2), slice(3), slice(0, 3), slice(0.0, 3)),
        *([], (), {}, set(), frozenset(), [1], (1,), [1.0], [1, 2], [2, 1], [[1], 2], [1, [2]], ["1, 2"]),
        *({1: 2}, {1: 3}, {1: 2, 3: 4}, {3: 4, 1: 2}, {1, 2}, frozenset({1, 2}), {1, 3}),
        *(collections.OrderedDict(), collections.OrderedDict({1: 2}), types.MappingProxyType({1: 2})),
        *(collections.defaultdict(list), collections.defaultdict(int), collections.defaultdict(None)),
        *(collections.deque(), collections.deque(maxlen=3), collections.deque([1])),
        *(types.SimpleNamespace(), types.SimpleNamespace(a=1), Rare(), Rare([1]), Named(), Named(a=1)),
        *(Count(1), Count(2), Share(0.0), Share(-0.0), Wave(1j), Wave(2j), Raw(b"1"), Raw(b""), Word("1"), Word("")),
        *(Row((1,)), Row(()), Group({1}), Group({2}), Group(), Pair(1, 2), OtherPair(1, 2)),
        *(Settings(), Settings(width=2), Settings(name="b"), Color.RED, Color.GREEN, Level.LOW),
        *(Rights.READ, Rights.READ | Rights.WRITE, Box(), OtherBox(), Box(a=1), Box(b=1), Box(a=1.0)),
        *(Box(a=1, b=2), Box(b=2, a=1), Slots(), set_on(Slots(), first=1), set_on(Slots(), second=1)),
        *(twice([]), [[], []], WORDS, [*WORDS[:-1], "another"], link(True), link(False)),
        *(twice(Box()), [Box(), Box()], twice(object()), [object(), object()], around(1), around(2), [1, [1, []]]),
        *(re.compile("a"), re.compile("a", re.IGNORECASE), re.compile(b"a")),
        *(pathlib.PurePosixPath("a"), pathlib.PurePosixPath("b")),
        *(functools.partial(len), functools.partial(len, 1), functools.partial(len, a=1)),
        *(Box(a=1).__init__, Box(a=2).__init__, [].append, [1].append, [].extend, len, max, math.sqrt, str.join),
        *(int.__add__, (1).__add__, math, torch, int, float, Box, OtherBox, list[int], list[str], int | str),
        *(torch.ops.aten, torch.ops.aten.add, torch.ops.aten.add.Tensor, torch.ops.aten.add.Scalar),
        *(torch.nn.attention.SDPBackend.MATH, torch.nn.attention.SDPBackend.FLASH_ATTENTION),
        *(np.float32(1), np.float64(1), np.float32(2), np.array(1, dtype=np.float32)),
        *(np.ones(3), np.ones(3, dtype=np.float32), np.ones((1, 3)), np.zeros(3)),
        *(Queue([1]), Queue([1], maxlen=1), Sums(int, {1: 1}), Sums(list, {1: 1})),
        *(Lazy(first_function), Lazy(second_function), Part(first_function), Part(first_function, 1)),
        *(first_function, second_function, staticmethod(first_function), classmethod(first_function)),
        *(property(first_function), property(None, first_function), functools.cache(first_function)),
        *(first_function.__code__, second_function.__code__, thunder.torch.add, thunder.torch.sub, thunder.prims.add),
        *(thunder.dtypes.float32, thunder.dtypes.float16, thunder.devices.Device("cpu")),
        *(thunder.devices.Device("cuda:0"), thunder.executors.torchex.ex, thunder.executors.pythonex.ex),
        *(torch._C._get_tracing_state, torch._C._log_api_usage_once, torch.sin, torch.cos),
        *(torch.nn.functional.silu, torch.nn.functional.gelu),
        *(torch.zeros(2), torch.zeros(3), torch.nn.Dropout(0.1), torch.nn.Dropout(0.2)),
        *({"a": [1, 2], "b": [3]}, {"a": [1], "b": [2, 3]}, Pair(1, [1]), Pair(1, [2])),
        *(frozenset({Box(a=1)}), frozenset({Box(a=2)}), types.CellType(), types.CellType(1)),
        *(close_over([1]), close_over([2]), set_on(Word("1"), mark=1), set_on(collections.OrderedDict(), mark=[1])),
        *(set_on(collections.OrderedDict(), mark=[2]), set_on(functools.partial(len), mark=1)),
        *(set_on(staticmethod(first_function), mark=1), enumerate_anew(), set_on(enumerate_anew(), mark=1)),
        *(make_function(mark=1), make_function(__qualname__="a"), make_function(__module__="a")),
        *(functools.cache(make_function(mark=1)), functools.cache(second_function)),
        *(
            functools.lru_cache(3)(first_function),
            functools.lru_cache(4)(first_function),
            pair_up(True),
            pair_up(False),
        ),
        *(wrap(each) for wrap in (decorate, functools.cached_property) for each in (first_function, second_function)),
        *(functools.partial(first_function), functools.partial(second_function), staticmethod(second_function)),
        *(classmethod(second_function), property(second_function), make_loop(), weakref.ref(KEPT), weakref.ref(set_on)),
        *(enum.Enum("Kind", fields) for fields in FIELDS),
        *(enum.Enum("Kind", fields)(1) for fields in FIELDS if 1 in fields.values()),
        *(make_data(**fields) for fields in FIELDS),
        *(torch.fx.symbolic_trace(lambda x: x + 1), torch.fx.symbolic_trace(lambda x: x + 2)),
    ]


def test_different_values_have_different_texts_alone_and_inside_others():
    for wrap in (lambda value: value, lambda value: Box(a=[value, 1]), lambda value: type("Body", (), {"a": value})):
        values = make_values()
        texts = collections.Counter(described(wrap(value)) for value in values)
        assert [text for text, count in texts.items() if count > 1] == []


def test_values_that_are_made_again_have_the_same_text():
    assert [*map(described, make_values())] == [*map(described, make_values())]


def move_to_end(name, **items):
    ordered = collections.OrderedDict(items)
    ordered.move_to_end(name)
    return ordered


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (lambda: {0, 8}, lambda: {8, 0}),  # sets with two orders of iteration
        (lambda: frozenset({"a", 1, (2, "b")}), lambda: frozenset({(2, "b"), 1, "a"})),
        (lambda: {(1, 2): [1]}, lambda: {(1, 2): [1]}),
        (lambda: {Color.RED, Color.GREEN}, lambda: {Color.GREEN, Color.RED}),
        (lambda: [(1,), (1,)], lambda: [(one := (1,)), one]),
        (lambda: pathlib.PurePosixPath("a/b"), lambda: pathlib.PurePosixPath("a") / "b"),
        (lambda: move_to_end("a", a=1, b=2), lambda: collections.OrderedDict(b=2, a=1)),
    ],
)
def test_what_cannot_be_told_apart_has_one_text(first, second):
    assert described(first()) == described(second())


def test_what_a_value_remembers_of_itself_is_no_part_of_it():
    path, cached = pathlib.PurePosixPath("a/b"), functools.cache(first_function)
    before = described([path, cached, Rights])
    hash(path), str(path), path.parts, cached(), Rights.READ | Rights.WRITE
    assert described([path, cached, Rights]) == before


def damage():
    damaged = collections.OrderedDict(a=1)
    dict.__delitem__(damaged, "a")
    return damaged


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (threading.Lock, "a _thread.lock has no value to compare"),
        (io.StringIO, "a _io.StringIO has no value to compare"),
        (lambda: logging.getLogger("of a test"), "a _.* has no value"),
        (lambda: iter([1]), "a builtins.list_iterator has no value to compare"),
        (lambda: itertools.count(), "a itertools.count has no value to compare"),
        (lambda: (x for x in ()), "a builtins.generator has no value to compare"),
        (lambda: os.environ, "the environment is not a value"),
        (lambda: torch.Generator(), "a torch._C.Generator has no value to compare"),
        (lambda: ValueError("a"), "a builtins.ValueError has no value to compare"),
        (lambda: types.ModuleType("nowhere"), "the module nowhere is not found under its name"),
        (lambda: types.ModuleType("sys"), "the module sys is not found under its name"),
        (lambda: np.frompyfunc(len, 1, 1), "a numpy.ufunc has no value to compare"),
        (lambda: operator.attrgetter("a"), "a operator.attrgetter has no value to compare"),
        (lambda: bytearray(b"1"), "a builtins.bytearray has no value to compare"),
        (lambda: derive(ValueError)(), r"has no value to compare: it is built on builtins\.ValueError"),
        (lambda: torch.ones(2, 2).to_sparse(), "a sparse, nested or quantized tensor has no value"),
        (lambda: torch.nested.nested_tensor([torch.ones(1)]), "a sparse, nested or quantized tensor has no value"),
        (lambda: torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.qint8), "a sparse, nested or quantized"),
        (lambda: torch._subclasses.FakeTensorMode().from_tensor(torch.ones(2)), "FakeTensor has no value to compare"),
        (damage, r"it could not be read \(KeyError\)"),
        (lambda: np.array([Box()]), "an array of objects"),
        (lambda: [1, {2: [threading.Lock()]}], "a _thread.lock has no value to compare"),
        (lambda: make_function(mark=threading.Lock()), "a _thread.lock has no value to compare"),
        (lambda: functools.reduce(lambda inner, _: [inner], range(1000), []), "nested more than 150 deep"),
        (lambda: [0] * 1_000_001, "more than 1000000 values"),
    ],
)
def test_what_has_no_value_says_why(make, reason):
    with pytest.raises(Declined, match=reason):
        described(make())


def test_nothing_stays_of_what_has_no_value():
    describer = Describer()
    inner, lock = [1], threading.Lock()
    with pytest.raises(Declined):
        describer.describe([inner, lock])
    assert describer.describe(inner) == "[1, ]"


def refuse(*given):
    raise AssertionError("code of a value ran")


def make_hostile(base, *names):
    """Returns a class in which these methods, and those that most values define, raise."""
    return type("Hostile", (base,), dict.fromkeys(("__eq__", "__hash__", "__repr__", "__str__", *names), refuse))


def test_no_code_of_a_value_runs():
    hostile = object.__new__(make_hostile(object, "__getattribute__", "__len__", "__bool__", "__iter__", "__reduce__"))
    object.__getattribute__(hostile, "__dict__")["a"] = 1
    kind = make_hostile(type, "__getattribute__", "__instancecheck__", "__subclasscheck__")("Kind", (), {})
    sizes = "__len__", "__iter__", "__getitem__"
    values = [
        hostile,
        object.__new__(kind),
        make_hostile(list, *sizes)([1, 2]),
        make_hostile(dict, *sizes, "items", "keys", "values")({1: 2}),
        make_hostile(int, "__index__", "__int__")(3),
        make_hostile(str, *sizes)("s"),
    ]
    text = described(values)
    assert text == described(values)
    for part in ("{'a': 1, }", "Kind", "[1, 2, ]", "{1: 2, }", " 3", "'s'"):
        assert part in text
