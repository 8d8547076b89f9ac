"""Functions and modules that read all kinds of things while they are traced. Tests change what they read."""

import collections
import dataclasses
import enum
import functools
import math
import os
import types

import torch
import torch.nn.functional as F
from torch import nn

SCALE = 2.0
NUMBERS = [1.0, 2.0]
TABLE = {"one": 1.0, "two": 2.0}
FLAGS = {"fast": True}
CHOICES = {"relu", "silu"}
SIZES = {8, 0}
WORDS = ["1", "2"]
SETTINGS = types.SimpleNamespace(gain=0.5)


class Kind(enum.Enum):
    """A kind of something."""

    PLAIN = 1
    DOUBLE = 2


KIND = Kind.PLAIN


@dataclasses.dataclass
class Config:
    """Numbers with names."""

    width: int = 4
    factor: float = 1.5
    inner: dict = dataclasses.field(default_factory=lambda: {"eps": 0.5})


CONFIG = Config()


def helper(x, amount=1.0, *, shift=0.25):
    """Has defaults of both sorts."""
    return x * amount + shift


def make_closure(amount):
    """Makes a function that has a cell."""

    def scaled(x):
        return x * amount

    return scaled


CLOSED = make_closure(3.0)
PARTIAL = functools.partial(helper, amount=4.0)
REGISTRY = {"act": F.relu}


def decorate(function):
    """Doubles what a function returns."""

    @functools.wraps(function)
    def doubled(*args):
        return function(*args) * 2

    return doubled


@decorate
def decorated(x):
    """Adds one."""
    return x + 1


class Base:
    """Has what a derived class finds."""

    offset = 0.5

    def shifted(self, x):
        """Adds a number of the class."""
        return x + self.offset


class Derived(Base):
    """Has a property, and methods of all sorts."""

    def __init__(self, factor):
        """Takes a number."""
        self.factor = factor

    @property
    def twice(self):
        """Doubles the number."""
        return self.factor * 2

    @staticmethod
    def halved(x):
        """Halves."""
        return x * 0.5

    @classmethod
    def named(cls, x):
        """Adds a number of the class."""
        return x + cls.offset

    def __call__(self, x):
        """Does all of it."""
        return self.named(self.halved(self.shifted(x))) * self.twice


OBJECT = Derived(1.5)


def look_around(x):
    """Reads one of everything."""
    x = x * SCALE + sum(NUMBERS) + TABLE["two"] + len(NUMBERS)
    x = x + sum(list(map(int, WORDS))) + sum(SIZES) + vars(SETTINGS)["gain"]
    x = helper(x) + CLOSED(x) + PARTIAL(x) + decorated(x)
    x = REGISTRY["act"](x) + F.silu(x) + torch.tanh(x) + OBJECT(x)
    from math import e

    if "silu" in CHOICES:
        x = x * sorted(SIZES)[-1] + e
    if KIND is Kind.DOUBLE:
        x = x * 2
    if FLAGS.get("fast") and CONFIG.width > 2:
        x = x * CONFIG.factor + CONFIG.inner["eps"] + math.pi
    if os.environ.get("READING_PROGRAMS", "no") == "yes":
        x = x + 1

    def nested(y):
        return y + 0.125

    counted = [nested(x) for _ in range(2)]
    counted.append(x)
    pairs = collections.OrderedDict(first=x)
    pairs["second"] = counted[0]
    return functools.reduce(lambda a, b: a + b, [*counted, *pairs.values()])


class Model(nn.Module):
    """A module that reads globals, attributes and its own class."""

    kind = "plain"

    def __init__(self):
        """Makes a layer, and a buffer that it counts in."""
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(()))

    @property
    def scale(self):
        """Is read from a global."""
        return SCALE * 2

    def forward(self, x):
        """Uses all of it."""
        self.count = self.count + 1
        x = self.layer(x) * self.scale
        return F.relu(x) if self.kind == "plain" else x
