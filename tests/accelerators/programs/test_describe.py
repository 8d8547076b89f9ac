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


def make_values() -> list[object]:
    """Returns values of which no two are equal, made anew."""
    return [
        *(1, 1.0, True, "1", b"1", 1j, 0, 0.0, -0.0, False, "", b"", None, ..., 2, math.inf, -math.inf, math.nan),
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
        *(Box(a=1, b=2), Box(b=2, a=1), slots(), slots(first=1), slots(second=1), twice([]), [[], []]),
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
    ]


def test_different_values_have_different_texts_alone_and_inside_others():
    for wrap in (lambda value: value, lambda value: Box(a=[value, 1])):
        values = make_values()
        texts = collections.Counter(described(wrap(value)) for value in values)
        assert [text for text, count in texts.items() if count > 1] == []


def test_values_that_are_made_again_have_the_same_text():
    assert [*map(described, make_values())] == [*map(described, make_values())]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (lambda: {0, 8}, lambda: {8, 0}),  # which have two orders
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
