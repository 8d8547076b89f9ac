import collections
import dataclasses
import enum
import functools
import math
import pathlib
import re
import types
import weakref

import numpy as np
import pytest
import thunder
import torch
from described import Box, described

from fusioncache.ir.errors import Declined


class OtherBox(Box):
    pass


class Slots:
    __slots__ = ("first", "second")


class Rare(list):
    pass


class Named(dict):
    pass


class Count(int):
    pass


class Share(float):
    pass


class Wave(complex):
    pass


class Raw(bytes):
    pass


class Word(str):
    pass


class Group(frozenset):
    pass


class Row(tuple):
    pass


class Queue(collections.deque):
    pass


class Sums(collections.defaultdict):
    pass


class Lazy(property):
    pass


class Part(functools.partial):
    pass


def first_function():
    return 1


def second_function():
    return 2


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


def slots(**values):
    made = Slots()
    for name, value in values.items():
        setattr(made, name, value)
    return made


def twice(item):
    return [item, item]


def around(last):
    items = [last]
    items.append(items)
    return items


# What no two of are equal, made anew whenever they are asked for.
DIFFERENT = [
    *(lambda value=value: value for value in (1, 1.0, True, "1", b"1", 1j, 0, 0.0, -0.0, False, "", b"", None, ..., 2)),
    *(lambda value=value: value for value in (complex(0.0, -0.0), complex(-0.0, 0.0), 1e300, 10**400, 10**400 + 1)),
    *(lambda value=value: value for value in (math.inf, -math.inf, math.nan, NotImplemented, "a b", "a  b", "'a'")),
    *(lambda value=value: value for value in ("x" * 300, "x" * 301, "y" * 300, b"x" * 300, b"y" * 300)),
    *(lambda value=value: value for value in (torch.float32, torch.float16, torch.strided, torch.channels_last)),
    *(lambda value=value: value for value in (torch.device("cpu"), torch.device("cuda"), torch.device("cuda:0"))),
    *(lambda value=value: value for value in (range(3), range(0, 3, 2), slice(3), slice(0, 3), slice(0.0, 3))),
    *(lambda value=value: value for value in (torch.Size([1]), torch.finfo(torch.float16), torch.iinfo(torch.int8))),
    lambda: [],
    lambda: (),
    lambda: {},
    lambda: set(),
    lambda: frozenset(),
    lambda: [1],
    lambda: (1,),
    lambda: [1.0],
    lambda: [1, 2],
    lambda: [2, 1],
    lambda: [[1], 2],
    lambda: [1, [2]],
    lambda: ["1, 2"],
    lambda: {1: 2},
    lambda: {1: 3},
    lambda: {1: 2, 3: 4},
    lambda: {3: 4, 1: 2},
    lambda: {1, 2},
    lambda: frozenset({1, 2}),
    lambda: {1, 3},
    lambda: collections.OrderedDict(),
    lambda: collections.OrderedDict({1: 2}),
    lambda: collections.defaultdict(list),
    lambda: collections.defaultdict(int),
    lambda: collections.defaultdict(None),
    lambda: collections.deque(),
    lambda: collections.deque(maxlen=3),
    lambda: collections.deque([1]),
    lambda: types.MappingProxyType({1: 2}),
    lambda: types.SimpleNamespace(),
    lambda: types.SimpleNamespace(a=1),
    lambda: Rare(),
    lambda: Rare([1]),
    lambda: Named(),
    lambda: Named(a=1),
    *(lambda value=value: value for value in (Count(1), Count(2), Share(0.0), Share(-0.0), Wave(1j), Wave(2j))),
    *(lambda value=value: value for value in (Raw(b"1"), Raw(b""), Word("1"), Word(""), Row((1,)), Row(()))),
    *(lambda value=value: value for value in (Group({1}), Group({2}), Group())),
    lambda: Pair(1, 2),
    lambda: OtherPair(1, 2),
    lambda: Settings(),
    lambda: Settings(width=2),
    lambda: Settings(name="b"),
    lambda: Color.RED,
    lambda: Color.GREEN,
    lambda: Level.LOW,
    lambda: Rights.READ,
    lambda: Rights.READ | Rights.WRITE,
    lambda: Box(),
    lambda: OtherBox(),
    lambda: Box(a=1),
    lambda: Box(b=1),
    lambda: Box(a=1.0),
    lambda: Box(a=1, b=2),
    lambda: Box(b=2, a=1),
    lambda: slots(),
    lambda: slots(first=1),
    lambda: slots(second=1),
    lambda: twice([]),
    lambda: [[], []],
    lambda: twice(Box()),
    lambda: [Box(), Box()],
    lambda: twice(object()),
    lambda: [object(), object()],
    lambda: around(1),
    lambda: around(2),
    lambda: [1, [1, []]],
    lambda: re.compile("a"),
    lambda: re.compile("a", re.IGNORECASE),
    lambda: re.compile(b"a"),
    lambda: pathlib.PurePosixPath("a"),
    lambda: pathlib.PurePosixPath("b"),
    lambda: functools.partial(len),
    lambda: functools.partial(len, 1),
    lambda: functools.partial(len, a=1),
    lambda: Box(a=1).__init__,
    lambda: Box(a=2).__init__,
    lambda: [].append,
    lambda: [1].append,
    lambda: [].extend,
    lambda: len,
    lambda: max,
    lambda: math.sqrt,
    lambda: str.join,
    lambda: int.__add__,
    lambda: (1).__add__,
    lambda: math,
    lambda: torch,
    lambda: torch.ops.aten,
    lambda: torch.ops.aten.add,
    lambda: torch.ops.aten.add.Tensor,
    lambda: torch.ops.aten.add.Scalar,
    lambda: torch.nn.attention.SDPBackend.MATH,
    lambda: torch.nn.attention.SDPBackend.FLASH_ATTENTION,
    lambda: int,
    lambda: float,
    lambda: Box,
    lambda: OtherBox,
    lambda: list[int],
    lambda: list[str],
    lambda: int | str,
    lambda: np.float32(1),
    lambda: np.float64(1),
    lambda: np.float32(2),
    lambda: np.array(1, dtype=np.float32),
    lambda: np.ones(3),
    lambda: np.ones(3, dtype=np.float32),
    lambda: np.ones((1, 3)),
    lambda: np.zeros(3),
    lambda: range(10**5000),
    lambda: Queue([1]),
    lambda: Queue([1], maxlen=1),
    lambda: Sums(int, {1: 1}),
    lambda: Sums(list, {1: 1}),
    lambda: Lazy(first_function),
    lambda: Lazy(second_function),
    lambda: Part(first_function),
    lambda: Part(first_function, 1),
    lambda: first_function,
    lambda: second_function,
    lambda: staticmethod(first_function),
    lambda: classmethod(first_function),
    lambda: property(first_function),
    lambda: property(None, first_function),
    lambda: functools.cache(first_function),
    lambda: first_function.__code__,
    lambda: second_function.__code__,
    lambda: thunder.torch.add,
    lambda: thunder.torch.sub,
    lambda: thunder.prims.add,
    lambda: thunder.dtypes.float32,
    lambda: thunder.dtypes.float16,
    lambda: thunder.devices.Device("cpu"),
    lambda: thunder.devices.Device("cuda:0"),
    lambda: thunder.executors.torchex.ex,
    lambda: thunder.executors.pythonex.ex,
    lambda: torch._C._get_tracing_state,
    lambda: torch._C._log_api_usage_once,
    lambda: torch.sin,
    lambda: torch.cos,
    lambda: torch.nn.functional.silu,
    lambda: torch.nn.functional.gelu,
]


def test_different_values_have_different_texts():
    made = [make() for make in DIFFERENT]
    texts = collections.Counter(map(described, made))
    assert [text for text, count in texts.items() if count > 1] == []


def test_values_that_are_made_again_have_the_same_text():
    for make in DIFFERENT:
        assert described(make()) == described(make())


def test_values_inside_others_differ_as_they_do_alone():
    texts = collections.Counter(described(Box(a=[make(), 1])) for make in DIFFERENT)
    assert max(texts.values()) == 1


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (lambda: set("abcdefgh"), lambda: set("hgfedcba")),
        (lambda: frozenset({"a", 1, (2, "b")}), lambda: frozenset({(2, "b"), 1, "a"})),
        (lambda: {(1, 2): [1]}, lambda: {(1, 2): [1]}),
        (lambda: float("nan"), lambda: -float("nan")),
        (lambda: {Color.RED, Color.GREEN}, lambda: {Color.GREEN, Color.RED}),
        (lambda: [(1,), (1,)], lambda: [(one := (1,)), one]),
        (lambda: pathlib.PurePosixPath("a/b"), lambda: pathlib.PurePosixPath("a") / "b"),
    ],
)
def test_what_cannot_be_told_apart_has_one_text(first, second):
    assert described(first()) == described(second())


def test_what_a_value_remembers_of_itself_is_no_part_of_it():
    path = pathlib.PurePosixPath("a/b")
    before = described(path)
    hash(path), str(path), path.parts
    assert described(path) == before

    @functools.lru_cache
    def double(x):
        return 2 * x

    before = described(double)
    double(1)
    assert described(double) == before
    before = described(Rights)
    Rights.READ | Rights.WRITE
    assert described(Rights) == before


def test_an_ordered_dict_has_the_order_that_it_says():
    moved = collections.OrderedDict(a=1, b=2)
    moved.move_to_end("a")
    assert described(moved) == described(collections.OrderedDict(b=2, a=1))


def test_a_damaged_value_has_no_value():
    damaged = collections.OrderedDict(a=1)
    dict.__delitem__(damaged, "a")
    with pytest.raises(Declined, match=r"it could not be read \(KeyError\)"):
        described(damaged)


def test_weak_references_are_what_they_refer_to():
    box, other = Box(a=1), Box(a=2)
    assert described([box, weakref.ref(box)]) != described([box, weakref.ref(Box(a=1))])
    assert described(weakref.ref(box)) != described(weakref.ref(other))
