"""Models of small blocks, each with something that forbids to write a block out by what another one did, or nothing."""

from __future__ import annotations

import enum
import functools
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

FLAG = False
SPECIAL: list[Any] = []
WIDTH = 4


class Block(nn.Module):
    """A block that reads what most blocks read, and has a number that nothing looks at."""

    scale = 0.5

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.factor = 2.0
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.gain = nn.Parameter(torch.ones(WIDTH))
        self.register_buffer("shift", torch.full((WIDTH,), float(number)))

    def forward(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        return x + self.run(x * self.gain, *args, **kwargs) * self.scale

    def run(self, x: Any) -> Any:
        return self.linear(x) * self.factor + self.shift


class Model(nn.Module):
    """Calls one block after the other."""

    def __init__(self, kind: type[Block] = Block, count: int = 6) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(kind(number) for number in range(count))
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, x: Any) -> Any:
        for number, block in enumerate(self.blocks):
            x = self.call(block, x, number)
        return self.head(x)

    def call(self, block: Any, x: Any, number: int) -> Any:
        return block(x)


class Branching(Block):
    def run(self, x: Any) -> Any:
        return x * 3 if self.number == 4 else super().run(x)


class Named(Block):
    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.name = f"block {number}"

    def run(self, x: Any) -> Any:
        return super().run(x) * (2 if self.name.endswith("4") else 1)


class LookingIntoDict(Block):
    def run(self, x: Any) -> Any:
        return super().run(x) * (2 if self.__dict__["number"] == 4 else 1)


class Collecting(Block):
    def run(self, x: Any, seen: list[int] = []) -> Any:  # noqa: B006
        seen.append(1)
        return super().run(x) * (2 if len(seen) == 5 else 1)


class Globals(Block):
    def run(self, x: Any) -> Any:
        return super().run(x) * (3 if FLAG else 1)


class Storing(Block):
    def run(self, x: Any) -> Any:
        self.shift = self.shift + 1
        return super().run(x)


class Filling(Block):
    def run(self, x: Any) -> Any:
        self.shift.add_(1)
        return super().run(x)


class Raising(Block):
    def run(self, x: Any) -> Any:
        try:
            raise KeyError("number")
        except KeyError:
            return super().run(x)


class Random(Block):
    def run(self, x: Any) -> Any:
        return torch.nn.functional.dropout(super().run(x), 0.5)


class Drawing(Block):
    def run(self, x: Any) -> Any:
        return super().run(x) * random.random()


class Frozen(Block):
    def run(self, x: Any) -> Any:
        with torch.no_grad():
            return super().run(x)


class Casting(Block):
    def run(self, x: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return super().run(x)


class InPlace(Block):
    def run(self, x: Any) -> Any:
        return super().run(x).add_(1)


class Itself(Block):
    def run(self, x: Any) -> Any:
        return super().run(x) * (2 if self is SPECIAL[0] else 1)


class Table(Block):
    def run(self, x: Any) -> Any:
        return super().run(x) * {SPECIAL[0]: 2}.get(self, 1)


class Member(Block):
    def run(self, x: Any) -> Any:
        return super().run(x) * (2 if self in SPECIAL else 1)


class Identity(Block):
    def run(self, x: Any) -> Any:
        return super().run(x) * (2 if id(self) == id(SPECIAL[0]) else 1)


class Closing(Block):
    def run(self, x: Any) -> Any:
        total = 0

        def add(value: int) -> None:
            nonlocal total
            total += value

        add(2)
        return super().run(x) * total


class Property(Block):
    @property
    def weight(self) -> Any:
        return self.linear.weight

    def run(self, x: Any) -> Any:
        return super().run(x) + self.weight.sum()


class Computed(Block):
    @property
    def rank(self) -> int:
        return self.number * 2

    def run(self, x: Any) -> Any:
        return super().run(x) * (3 if self.rank == 8 else 1)


class Missing(Block):
    def __getattr__(self, name: str) -> Any:
        if name == "twice":
            return 2
        return super().__getattr__(name)

    def run(self, x: Any) -> Any:
        return super().run(x) * self.twice


class Naming(Block):
    def run(self, x: Any) -> Any:
        return sum((super(Naming, self).run(x) * each.sum() for _, each in self.named_parameters()), x)


class Mode(enum.Enum):
    PLAIN = 1


class Odd:
    """An object with a name, and with answers of its own."""

    name = "odd"

    def __eq__(self, other: object) -> bool:
        raise ZeroDivisionError

    __hash__ = None  # type: ignore[assignment]


ODD = Odd()


class Moded(Block):
    def run(self, x: Any, mode: Any, odd: Any) -> Any:
        return super().run(x) * (2 if mode is Mode.PLAIN else 1)


class Told(Block):
    def run(self, x: Any, number: int) -> Any:
        return super().run(x) * (2 if number == 4 else 1)


class Tables(Block):
    def run(self, x: Any, tables: Any, mask: Any = None, *, steps: int = 1) -> Any:
        cos, sin = tables
        x = super().run(x) * cos + sin * steps
        return x if mask is None else x * mask


class Several(Block):
    def forward(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        return super().forward(x), x, None


class Shape(Block):
    def run(self, x: Any) -> Any:
        batch, width = x.shape
        return super().run(x).view(batch, 2, width // 2).transpose(1, 2).reshape(batch, width)


class InBlocks(Model):
    """Calls the blocks in one way or another."""

    def __init__(self, kind: type[Block], how: Callable[..., Any], count: int = 6) -> None:
        super().__init__(kind, count)
        self.how = how
        self.state = 0

    def call(self, block: Any, x: Any, number: int) -> Any:
        return self.how(self, block, x, number)


def twice(model: Any, block: Any, x: Any, number: int) -> Any:
    return block(block(x))


def first_again(model: Any, block: Any, x: Any, number: int) -> Any:
    return model.blocks[3](block(x)) if number == 4 else block(x)


def look_after(model: Any, block: Any, x: Any, number: int) -> Any:
    return block(x) * block.factor


def look_before(model: Any, block: Any, x: Any, number: int) -> Any:
    return block(x * block.linear.out_features)


def set_flag(model: Any, block: Any, x: Any, number: int) -> Any:
    global FLAG
    if number == 4:
        FLAG = True
    return block(x)


def tell(model: Any, block: Any, x: Any, number: int) -> Any:
    return block(x, number)


def give_objects(model: Any, block: Any, x: Any, number: int) -> Any:
    return block(x, Mode.PLAIN, ODD)


def give_tables(model: Any, block: Any, x: Any, number: int) -> Any:
    return block(x, (x, x + 1), None, steps=2)


def give_other_tables(model: Any, block: Any, x: Any, number: int) -> Any:
    return block(x, (x, x if number == 4 else x + 1), None, steps=2 + number // 4)


def take_first(model: Any, block: Any, x: Any, number: int) -> Any:
    one, two, _ = block(x)
    return one + two


def under_no_grad(model: Any, block: Any, x: Any, number: int) -> Any:
    with torch.no_grad():
        return block(x)


def fail_late(model: Any, block: Any, x: Any, number: int) -> Any:
    return block(x) if number < 4 else x / (1 // (number - 4))


def forget() -> None:
    """Makes everything as it was that blocks change when they are called."""
    global FLAG
    FLAG = False
    (Collecting.run.__defaults__ or ([],))[0].clear()


ALIKE = (Block, Raising, Random, InPlace, Filling, Property, Missing, Shape, Globals, Closing)
"""Kinds of blocks that are alike in spite of what they do."""

REFUSED = {
    Branching: "number differs, and is looked at",
    Named: "name differs, and is looked at",
    LookingIntoDict: "number differs, and is looked at",
    Computed: "rank is no plain attribute",
    Collecting: "effects are unknown",
    Storing: "an attribute of a module was set before",
    Drawing: "calls Random.random",
    Frozen: "is_grad_enabled",
    Casting: "autocast",
    Itself: "compares objects",
    Member: "compares objects",
    Table: "executes BUILD_MAP",
    Identity: "calls builtins.id",
    Naming: "named_parameters",
}
"""Kinds of blocks of which none can be written out by another, and why."""

CALLED = (
    (Told, tell, 0),
    (Moded, give_objects, 0),
    (Tables, give_tables, 1),
    (Tables, give_other_tables, 0),
    (Several, take_first, 2),
    (Globals, set_flag, 1),
    (Block, under_no_grad, 0),
    (Block, twice, 1),
    (Block, look_before, 0),
)
"""Ways to call five blocks, and how many are written out."""

LATE = {first_again: "a block is used twice", look_after: "a copied block is inspected"}
"""Ways to call blocks that show too late that they should have been interpreted."""


def share_parameter(one: Any, other: Any) -> None:
    other.linear.weight = one.linear.weight


def share_module(one: Any, other: Any) -> None:
    other.linear = one.linear


def tie_within(one: Any, other: Any) -> None:
    other.gain = other.linear.bias


def change_attribute(one: Any, other: Any) -> None:
    other.factor = 3.0


def change_type(one: Any, other: Any) -> None:
    other.factor = 2


def change_mode(one: Any, other: Any) -> None:
    other.eval()


def add_attribute(one: Any, other: Any) -> None:
    other.extra = 1


def add_hook(one: Any, other: Any) -> None:
    other.register_forward_hook(double)


def double(module: Any, args: Any, output: Any) -> Any:
    return output * 2


def freeze(one: Any, other: Any) -> None:
    other.linear.weight.requires_grad_(False)


def reshape_buffer(one: Any, other: Any) -> None:
    other.shift = torch.ones(1)


def drop_bias(one: Any, other: Any) -> None:
    other.linear.bias = None


def replace_forward(one: Any, other: Any) -> None:
    other.forward = functools.partial(replaced, other)


def replaced(module: Any, x: Any) -> Any:
    return x


def change_class(one: Any, other: Any) -> None:
    other.__class__ = InPlace


def change_values(one: Any, other: Any) -> None:
    with torch.no_grad():
        other.shift.fill_(9)


def change_number(one: Any, other: Any) -> None:
    other.number = -17


class Doubled(nn.Linear):
    def forward(self, x: Any) -> Any:
        return super().forward(x) * 2


def change_inner_class(one: Any, other: Any) -> None:
    other.linear.__class__ = Doubled


CHANGES: dict[tuple[Callable[[Any, Any], None], ...], bool] = {
    (share_parameter, change_values, change_number): True,
    (tie_within, change_attribute, change_type, change_mode, add_attribute, add_hook): False,
    (freeze, reshape_buffer, drop_bias, replace_forward, change_class, change_inner_class, share_module): False,
}
"""What makes the second of two blocks another one, or does not, and whether it is written out all the same.

Behind some changes less is written out. They are the last ones of their groups.
"""
