"""Models of small blocks, each with something that forbids to write a block out by what another one did, or nothing."""

from __future__ import annotations

import enum
import functools
import operator
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

FLAG = False
SPECIAL: list[Any] = []
SHARED = SimpleNamespace(calls=0, names={})
TICKS: list[int] = []
WIDTH = 4


class Block(nn.Module):
    """A block that reads what most blocks read, and has a number and a name that nothing looks at."""

    scale = 0.5

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number, self.name = number, f"block {number}"
        self.factor, self.sizes, self.table = 2.0, [1, 2], {"a": (1, [2])}
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.gain = nn.Parameter(torch.ones(WIDTH))
        self.register_buffer("shift", torch.full((WIDTH,), float(number)))

    @property
    def rank(self) -> int:
        return self.number * 2

    @property
    def weight(self) -> Any:
        return self.linear.weight

    def forward(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        return x + self.run(x * self.gain, *args, **kwargs) * self.scale

    def run(self, x: Any) -> Any:
        return self.linear(x) * self.factor + self.shift


def call(block: Any, x: Any, *_: Any) -> Any:
    return block(x)


class Model(nn.Module):
    """Calls one block after the other in some way, and tells each what it has made."""

    def __init__(self, kind: type[Block] = Block, how: Callable[..., Any] = call, count: int = 5, made: Any = None):
        super().__init__()
        self.blocks = nn.ModuleList(kind(number) for number in range(count))
        self.head = nn.Linear(WIDTH, 2)
        self.how, self.make = how, made or dict

    def forward(self, x: Any) -> Any:
        made = self.make()
        for number, block in enumerate(self.blocks):
            x = self.how(block, x, number, self.blocks, made)
        return self.head(x)


def of(run: Callable[..., Any], name: str = "run") -> type[Block]:
    """Returns the kind of blocks that compute this."""
    return type("Kind", (Block,), {name: run})


def twice_if(condition: Callable[[Any], Any]) -> type[Block]:
    """Returns the kind of blocks that compute twice as much where something is true of them."""
    return of(lambda self, x: Block.run(self, x) * (2 if condition(self) else 1))


class Raising(Block):
    def run(self, x: Any) -> Any:
        try:
            raise KeyError("number")
        except KeyError:
            return super().run(x)


class Filling(Block):
    def run(self, x: Any) -> Any:
        self.shift.add_(1)
        return super().run(x)


class InPlace(Block):
    def run(self, x: Any) -> Any:
        return super().run(x).add_(1)


class Closing(Block):
    def run(self, x: Any) -> Any:
        total = 0

        def add(value: int) -> None:
            nonlocal total
            total += value

        add(2)
        return super().run(x) * total


class MadeUp(Block):
    def __getattr__(self, name: str) -> Any:
        return 2 if name == "two" else super().__getattr__(name)

    def run(self, x: Any) -> Any:
        return super().run(x) * self.two


class Shape(Block):
    def run(self, x: Any) -> Any:
        batch, width = x.shape
        return super().run(x).view(batch, 2, width // 2).transpose(1, 2).reshape(batch, width)


GLOBALS = twice_if(lambda block: FLAG)
CONTAINERS = of(lambda self, x: Block.run(self, x) * len(self.sizes) + self.table["a"][1][0])
ALIKE = {
    "nothing": Block,
    "an exception that is caught": Raising,
    "random numbers of torch's": of(lambda self, x: nn.functional.dropout(Block.run(self, x), 0.5)),
    "an operation in place": InPlace,
    "a buffer that is filled": Filling,
    "a property": of(lambda self, x: Block.run(self, x) + self.weight.sum()),
    "an attribute that is made up": MadeUp,
    "a shape": Shape,
    "a global": GLOBALS,
    "a closure": Closing,
    "containers": CONTAINERS,
}
"""Kinds of blocks that are alike in spite of what they do."""


class Storing(Block):
    def run(self, x: Any) -> Any:
        self.shift = self.shift + 1
        return super().run(x)


class Counting(Block):
    calls = 0

    def run(self, x: Any) -> Any:
        self.calls += 1
        return super().run(x) * self.calls


class CountingAll(Block):
    def run(self, x: Any) -> Any:
        SHARED.calls += 1
        return super().run(x) * SHARED.calls


class Naming(Block):
    def run(self, x: Any) -> Any:
        SHARED.names[f"n{len(SHARED.names)}"] = x
        return super().run(x) * len(SHARED.names)


class Collecting(Block):
    def run(self, x: Any, seen: list[int] = []) -> Any:  # noqa: B006
        seen.append(1)
        return super().run(x) * (2 if len(seen) == 5 else 1)


class Frozen(Block):
    def run(self, x: Any) -> Any:
        with torch.no_grad():
            return super().run(x)


class Casting(Block):
    def run(self, x: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return super().run(x)


class Ticking:
    """What asks it for a number or a string is written in C, and counts."""

    def __index__(self) -> int:
        TICKS.append(1)
        return len(TICKS)

    def __format__(self, spec: str) -> str:
        return "a" * int(self)


TICKING = Ticking()


class Global(Block):
    def run(self, x: Any) -> Any:
        global FLAG
        FLAG = FLAG + 1
        return super().run(x) * FLAG


REFUSED = {
    "number differs, and is looked at": (
        of(lambda self, x: x * 3 if self.number == 4 else Block.run(self, x)),
        twice_if(lambda block: block.__dict__["number"] == 4),
    ),
    "name differs, and is looked at": (twice_if(lambda block: block.name.endswith("4")),),
    "rank is no plain attribute": (twice_if(lambda block: block.rank == 8),),
    "effects are unknown": (Collecting,),
    "an attribute of a module was set before": (Storing,),
    "calls Random.random": (twice_if(lambda block: random.random() > 2),),
    "is_grad_enabled": (Frozen,),
    "autocast": (Casting,),
    "compares objects": (twice_if(lambda block: block is SPECIAL[0]), twice_if(lambda block: block in SPECIAL)),
    "executes BUILD_MAP": (twice_if(lambda block: {SPECIAL[0]: 1}.get(block)),),
    "calls builtins.id": (twice_if(lambda block: id(block) == id(SPECIAL[0])),),
    "named_parameters": (twice_if(lambda block: [*block.named_parameters()]),),
    "": (  # whichever comes first
        *(Counting, CountingAll, Naming, Global),
        of(lambda self, x: Block.run(self, x) * int(TICKING)),
        of(lambda self, x: Block.run(self, x) * len(f"{TICKING}")),
        of(lambda self, x: Block.run(self, x) * len("{a}".format(a=TICKING))),  # noqa: UP032
        of(lambda self, x: Block.run(self, x) * max(1, 2, key=lambda value: TICKS.append(value) or value)),
    ),
}
"""Kinds of blocks of which none can be written out by another, by the reason."""


class Mode(enum.Enum):
    PLAIN = 1


class Odd:
    """An object with a name, and with answers of its own."""

    name = "odd"

    def __eq__(self, other: object) -> bool:
        raise ZeroDivisionError

    __hash__ = None  # type: ignore[assignment]


ODD = Odd()


class Tables(Block):
    def run(self, x: Any, tables: Any, mask: Any = None, *, steps: int = 1) -> Any:
        cos, sin = tables
        x = super().run(x) * cos + sin * steps
        return x if mask is None else x * mask


def give(argument: Callable[..., Any]) -> Callable[..., Any]:
    """Returns how blocks are called with something more."""
    return lambda block, x, number, blocks, made: block(x, argument(number, made))


def take_first(block: Any, x: Any, *_: Any) -> Any:
    one, two, _ = block(x)
    return one + two


def give_other_tables(block: Any, x: Any, number: int, *_: Any) -> Any:
    return block(x, (x, x if number == 4 else x + 1), None, steps=2 + number // 4)


def set_flag(block: Any, x: Any, number: int, *_: Any) -> Any:
    global FLAG
    if number == 4:
        FLAG = True
    return block(x)


def grow_table(block: Any, x: Any, number: int, blocks: Any, _: Any) -> Any:
    x = block(x)
    if number == 3:
        blocks[3].table["b"] = 1
    return x


def grow_sizes(block: Any, x: Any, number: int, *_: Any) -> Any:
    if number == 4:
        block.sizes.append(1)
    return block(x)


def set_item(block: Any, x: Any, number: int, *_: Any) -> Any:
    if number == 4:
        operator.setitem(SHARED.names, "k", 1)
    return block(x)


def count_and_look(block: Any, x: Any, number: int, *_: Any) -> Any:
    x = block(x)
    if number < 4:
        return x
    SHARED.calls += 1
    return x * SHARED.calls * block.factor


def under_no_grad(block: Any, x: Any, *_: Any) -> Any:
    with torch.no_grad():
        return block(x)


def fail_late(block: Any, x: Any, number: int, *_: Any) -> Any:
    return block(x) if number < 4 else x / (1 // (number - 4))


def set_after(block: Any, x: Any, number: int, *_: Any) -> Any:
    x = block(x)
    if number == 4:
        block.seen = 1
    return x


def change_made(change: Callable[..., Any]) -> Callable[..., Any]:
    """Returns how blocks are called with something that is changed before the last one."""

    def call_changed(block: Any, x: Any, number: int, blocks: Any, made: Any) -> Any:
        if number == 4:
            change(made)
        return block(x, made)

    return call_changed


class Holder:
    def __init__(self, number: int) -> None:
        self.number = number


def grow(made: Any) -> None:
    made += [2]


TOLD = of(lambda self, x, number: Block.run(self, x) * (2 if number == 4 else 1))
SIZED = of(lambda self, x, made: Block.run(self, x) * len(made))
CALLED: dict[str, tuple[Any, ...]] = {
    "a number": (0, TOLD, give(lambda number, made: number)),
    "another list": (0, SIZED, give(lambda number, made: [1] * number)),
    "a list that changes": (0, SIZED, change_made(grow), lambda: [1]),
    "an object that is made anew in C": (
        *(0, of(lambda self, x, made: Block.run(self, x) * made.number)),
        *(change_made(lambda made: functools.partial(Holder.__init__, made)(3)), lambda: Holder(1)),
    ),
    "objects": (
        *(0, of(lambda self, x, mode, odd: Block.run(self, x) * (2 if mode is Mode.PLAIN else 1))),
        lambda block, x, *_: block(x, Mode.PLAIN, ODD),
    ),
    "tables": (1, Tables, lambda block, x, *_: block(x, (x, x + 1), None, steps=2)),
    "a mask": (0, Tables, lambda block, x, number, *_: block(x, (x, x + 1), x if number == 4 else None, steps=2)),
    "other tables": (0, Tables, give_other_tables),
    "several results": (2, of(lambda self, x: (Block.forward(self, x), x, None), "forward"), take_first),
    "a dict as a result": (0, of(lambda self, x: {"x": x}, "forward"), lambda block, x, *_: block(x)["x"]),
    "a parameter of another block": (0, of(lambda self, x: Block.run(self, x) * SPECIAL[0].gain.sum()), call),
    "a parameter as the result": (1, of(lambda self, x: self.gain, "forward"), call),
    "no result": (3, of(lambda self, x: None, "forward"), lambda block, x, *_: block(x) or x),
    "a global that changes": (1, GLOBALS, set_flag),
    "a dict of a copied block that grows": (1, CONTAINERS, grow_table),
    "a list that grows before its block": (1, CONTAINERS, grow_sizes),
    "an item of a global dict": (1, of(lambda self, x: Block.run(self, x) * (1 + len(SHARED.names))), set_item),
    "another keyword": (
        *(1, of(lambda self, x, by=1, to=1: Block.run(self, x) * by + to)),
        lambda block, x, number, *_: block(x, to=2) if number == 4 else block(x, by=2),
    ),
    "a keyword by its place": (
        *(1, of(lambda self, x, by=1, to=1: Block.run(self, x) * by + to)),
        lambda block, x, number, *_: block(x, 2) if number == 4 else block(x, by=2),
    ),
    "no gradients": (0, Block, under_no_grad),
    "twice": (1, Block, lambda block, x, *_: block(block(x))),
    "a part of another block": (1, of(lambda self, x: Block.run(self, x) * SPECIAL[1].out_features), call),
    "set afterwards": (2, Block, set_after),
    "looked at before": (0, Block, lambda block, x, *_: block(x * block.linear.out_features)),
}
"""How many of five blocks are written out, of which kind, how they are called, and with what the model makes."""

LATE: dict[str, Callable[..., Any]] = {
    "a block is used twice": lambda block, x, number, blocks, _: blocks[3](block(x)) if number == 4 else block(x),
    "a function whose effects are unknown, after blocks were copied": count_and_look,
    "a copied block is inspected": lambda block, x, *_: block(x) * block.factor,
}
"""Ways to call blocks that show too late that they should have been interpreted, by the reason."""


def forget() -> None:
    """Makes everything as it was that blocks change when they are called."""
    global FLAG
    FLAG = False
    SHARED.calls = 0
    for each in (TICKS, SHARED.names, (Collecting.run.__defaults__ or ([],))[0]):
        each.clear()


class Doubled(nn.Linear):
    def forward(self, x: Any) -> Any:
        return super().forward(x) * 2


def double(module: Any, args: Any, output: Any) -> Any:
    return output * 2


def replaced(module: Any, x: Any) -> Any:
    return x


CHANGES: dict[str, tuple[bool, list[Callable[[Any, Any], Any]]]] = {
    "alike": (
        True,
        [
            lambda one, other: setattr(other.linear, "weight", one.linear.weight),
            lambda one, other: other.shift.data.fill_(9),
            lambda one, other: setattr(other, "number", -17),
        ],
    ),
    "not alike": (
        False,
        [
            lambda one, other: setattr(other, "gain", other.linear.bias),
            lambda one, other: setattr(other, "factor", 3.0),
            lambda one, other: setattr(other, "factor", 2),
            lambda one, other: setattr(other, "factor", True),
            lambda one, other: setattr(other, "factor", torch.ones(WIDTH)),
            lambda one, other: other.eval(),
            lambda one, other: setattr(other, "extra", 1),
            lambda one, other: other._non_persistent_buffers_set.add("shift"),
            lambda one, other: other.register_forward_hook(double),
        ],
    ),
    "of another form": (
        False,
        [
            lambda one, other: other.linear.weight.requires_grad_(False),
            lambda one, other: setattr(other, "shift", torch.ones(1)),
            lambda one, other: setattr(other, "shift", torch.ones(WIDTH, dtype=torch.float16)),
            lambda one, other: setattr(other.linear, "bias", None),
            lambda one, other: setattr(other, "forward", functools.partial(replaced, other)),
            lambda one, other: setattr(other, "__class__", InPlace),
            lambda one, other: setattr(other.linear, "__class__", Doubled),
            lambda one, other: setattr(other, "linear", one.linear),
        ],
    ),
    "with other containers": (
        False,
        [
            lambda one, other: other.sizes.append(2),
            lambda one, other: setattr(other, "sizes", (1, 2)),
            lambda one, other: other.table.update(a=(1, [2.0])),
            lambda one, other: other.table.update(b=3),
        ],
    ),
}
"""Whether the second of two blocks is written out all the same, and what makes it another one, or does not.

Behind some changes less is written out. They are the last ones of their groups.
"""
