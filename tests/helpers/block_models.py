"""Models of small blocks, some of which do something that forbids to write a block out by copying another one."""

import enum
import functools
import operator
import random
from types import SimpleNamespace

import torch
from torch import nn

from fusioncache.accelerators.layers import session

FLAG = False
SPECIAL = []
SHARED = SimpleNamespace(calls=0, names={})
TICKS = []
WIDTH = 4


SESSIONS = []


class Watched(session.Session):
    """A session that registers itself in ``SESSIONS``, so that a test can check the blocks of each traced model."""

    def __init__(self, model):
        super().__init__(model)
        SESSIONS.append(self)


class Block(nn.Module):
    """A block that reads what most blocks read, and has a number and a name that nothing looks at."""

    scale, calls = 0.5, 0

    def __init__(self, number):
        super().__init__()
        self.number, self.name = number, f"block {number}"
        self.factor, self.sizes, self.table = 2.0, [1, 2], {"a": (1, [2])}
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.gain = nn.Parameter(torch.ones(WIDTH))
        self.register_buffer("shift", torch.full((WIDTH,), float(number)))

    @property
    def rank(self):
        return self.number * 2

    @property
    def weight(self):
        return self.linear.weight

    def forward(self, x, *args, **kwargs):
        return x + self.run(x * self.gain, *args, **kwargs) * self.scale

    def run(self, x):
        return self.linear(x) * self.factor + self.shift


def call(block, x, *_):
    return block(x)


class Model(nn.Module):
    """Calls one block after the other in some way, and tells each what it has made."""

    def __init__(self, kind=Block, how=call, count=5, made=dict):
        super().__init__()
        self.blocks = nn.ModuleList(kind(number) for number in range(count))
        self.head = nn.Linear(WIDTH, 2)
        self.how, self.make = how, made

    def forward(self, x):
        made = self.make()
        for number, block in enumerate(self.blocks):
            x = self.how(block, x, number, self.blocks, made)
        return self.head(x)


def of(run, name="run", base=Block):
    return type("Kind", (base,), {name: run})


def twice_if(condition):
    """Returns the kind of blocks that double their result if a condition on the block is true."""
    return of(lambda self, x: Block.run(self, x) * (2 if condition(self) else 1))


class MadeUp(Block):
    def __getattr__(self, name):
        return 2 if name == "two" else super().__getattr__(name)

    def run(self, x):
        return super().run(x) * self.two


class Graded(Block):
    """A block with a gradient."""

    def __init__(self, number):
        super().__init__(number)
        self.gain.grad = torch.full((WIDTH,), float(number))


class Runs:
    """Functions that replace ``Block.run``."""

    def catch(self, x):
        try:
            raise KeyError("number")
        except KeyError:
            return Block.run(self, x)

    def fill(self, x):
        self.shift.add_(1)
        return Block.run(self, x)

    def close(self, x):
        total = 0

        def add(value):
            nonlocal total
            total += value

        add(2)
        return Block.run(self, x) * total

    def shape(self, x):
        batch, width = x.shape
        return Block.run(self, x).view(batch, 2, width // 2).transpose(1, 2).reshape(batch, width)

    def store(self, x):
        self.shift = self.shift + 1
        return Block.run(self, x)

    def count(self, x):
        self.calls += 1
        return Block.run(self, x) * self.calls

    def count_all(self, x):
        SHARED.calls += 1
        return Block.run(self, x) * SHARED.calls

    def count_in_global(self, x):
        global FLAG
        FLAG = FLAG + 1
        return Block.run(self, x) * FLAG

    def name(self, x):
        SHARED.names[f"n{len(SHARED.names)}"] = x
        return Block.run(self, x) * len(SHARED.names)

    def collect(self, x, seen=[]):  # noqa: B006
        seen.append(1)
        return Block.run(self, x) * (2 if len(seen) == 5 else 1)

    def freeze(self, x):
        with torch.no_grad():
            return Block.run(self, x)

    def cast(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return Block.run(self, x)

    def use_tables(self, x, tables, mask=None, *, steps=1):
        cos, sin = tables
        x = Block.run(self, x) * cos + sin * steps
        return x if mask is None else x * mask


IN_PLACE = of(lambda self, x: Block.run(self, x).add_(1))
GLOBALS = twice_if(lambda block: FLAG)
CONTAINERS = of(lambda self, x: Block.run(self, x) * len(self.sizes) + self.table["a"][1][0])
ALIKE = {
    "nothing": Block,
    "an exception that is caught": of(Runs.catch),
    "random numbers of torch's": of(lambda self, x: nn.functional.dropout(Block.run(self, x), 0.5)),
    "an operation in place": IN_PLACE,
    "a buffer that is filled": of(Runs.fill),
    "a property": of(lambda self, x: Block.run(self, x) + self.weight.sum()),
    "an attribute that is made up": MadeUp,
    "a gradient": Graded,
    "a shape": of(Runs.shape),
    "a global": GLOBALS,
    "a closure": of(Runs.close),
    "containers": CONTAINERS,
}
"""Kinds of blocks that can be written out by another in spite of what they do."""


class Ticking:
    """An object whose conversions to a number and a string are called from C, and count in ``TICKS``."""

    def __index__(self):
        TICKS.append(1)
        return len(TICKS)

    def __format__(self, spec):
        return "a" * int(self)


TICKING = Ticking()
REFUSED = {
    "number differs, and is looked at": (
        of(lambda self, x: x * 3 if self.number == 4 else Block.run(self, x)),
        twice_if(lambda block: block.__dict__["number"] == 4),
    ),
    "name differs, and is looked at": (twice_if(lambda block: block.name.endswith("4")),),
    "rank is no plain attribute": (twice_if(lambda block: block.rank == 8),),
    "effects are unknown": (
        of(Runs.collect),
        of(lambda self, x: Block.run(self, x) * self.gain.grad, base=Graded),
    ),
    "an attribute of a module was set before": (of(Runs.store),),
    "calls Random.random": (twice_if(lambda block: random.random() > 2),),
    "used a function whose effects are unknown": (
        of(lambda self, x: Block.run(self, x) * self.gain.grad, base=Graded),
    ),
    "is_grad_enabled": (of(Runs.freeze),),
    "autocast": (of(Runs.cast),),
    "compares objects": (twice_if(lambda block: block is SPECIAL[0]), twice_if(lambda block: block in SPECIAL)),
    "executes BUILD_MAP": (twice_if(lambda block: {SPECIAL[0]: 1}.get(block)),),
    "calls builtins.id": (twice_if(lambda block: id(block) == id(SPECIAL[0])),),
    "named_parameters": (twice_if(lambda block: [*block.named_parameters()]),),
    "": (  # whichever comes first
        *map(of, (Runs.count, Runs.count_all, Runs.name, Runs.count_in_global)),
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
    """An object with a name, whose ``__eq__`` raises and that has no hash."""

    name = "odd"

    def __eq__(self, other):
        raise ZeroDivisionError

    __hash__ = None


class Holder:
    def __init__(self, number):
        self.number = number


def give(argument):
    """Returns a way to call blocks with an additional argument."""
    return lambda block, x, number, blocks, made: block(x, argument(number, made))


def change_before(change):
    """Returns a way to call blocks that changes the last one before its call."""

    def call_changed(block, x, number, *_):
        if number == 4:
            change(block)
        return block(x)

    return call_changed


def change_made(change):
    def call_changed(block, x, number, blocks, made):
        if number == 4:
            change(made)
        return block(x, made)

    return call_changed


def set_flag(block):
    global FLAG
    FLAG = True


def grow(made):
    made += [2]


def grow_table(block, x, number, blocks, _):
    x = block(x)
    if number == 3:
        blocks[3].table["b"] = 1
    return x


def set_after(block, x, number, *_):
    x = block(x)
    if number == 4:
        block.seen = 1
    return x


def take_first(block, x, *_):
    one, two, _ = block(x)
    return one + two


def under_no_grad(block, x, *_):
    with torch.no_grad():
        return block(x)


def fail_late(block, x, number, *_):
    return block(x) if number < 4 else x / (1 // (number - 4))


def count_and_look(block, x, number, *_):
    x = block(x)
    if number < 4:
        return x
    SHARED.calls += 1
    return x * SHARED.calls * block.factor


ODD = Odd()
TOLD = of(lambda self, x, number: Block.run(self, x) * (2 if number == 4 else 1))
SIZED = of(lambda self, x, made: Block.run(self, x) * len(made))
TABLES = of(Runs.use_tables)
KEYWORDS = of(lambda self, x, by=1, to=1: Block.run(self, x) * by + to)
CALLED = {
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
    "tables": (1, TABLES, lambda block, x, *_: block(x, (x, x + 1), None, steps=2)),
    "a mask": (0, TABLES, lambda block, x, number, *_: block(x, (x, x + 1), x if number == 4 else None, steps=2)),
    "other tables": (0, TABLES, lambda block, x, number, *_: block(x, (x, x if number == 4 else x + 1))),
    "another number": (0, TABLES, lambda block, x, number, *_: block(x, (x, x + 1), steps=2 + number // 4)),
    "several results": (2, of(lambda self, x: (Block.forward(self, x), x, None), "forward"), take_first),
    "a dict as a result": (0, of(lambda self, x: {"x": x}, "forward"), lambda block, x, *_: block(x)["x"]),
    "a parameter of another block": (0, of(lambda self, x: Block.run(self, x) * SPECIAL[0].gain.sum()), call),
    "a parameter as the result": (1, of(lambda self, x: self.gain, "forward"), call),
    "no result": (3, of(lambda self, x: None, "forward"), lambda block, x, *_: block(x) or x),
    "a global that changes": (1, GLOBALS, change_before(set_flag)),
    "a dict of a copied block that grows": (1, CONTAINERS, grow_table),
    "a list that grows before its block": (1, CONTAINERS, change_before(lambda block: block.sizes.append(1))),
    "an item of a global dict": (
        *(1, of(lambda self, x: Block.run(self, x) * (1 + len(SHARED.names)))),
        change_before(lambda block: operator.setitem(SHARED.names, "k", 1)),
    ),
    "another keyword": (1, KEYWORDS, lambda block, x, number, *_: block(x, to=2) if number == 4 else block(x, by=2)),
    "a keyword by its place": (
        1,
        KEYWORDS,
        lambda block, x, number, *_: block(x, 2) if number == 4 else block(x, by=2),
    ),
    "no gradients": (0, Block, under_no_grad),
    "twice": (1, Block, lambda block, x, *_: block(block(x))),
    "a part of another block": (1, of(lambda self, x: Block.run(self, x) * SPECIAL[1].out_features), call),
    "set afterwards": (2, Block, set_after),
    "looked at before": (0, Block, lambda block, x, *_: block(x * block.linear.out_features)),
}
"""By the way to call five blocks: how many are written out, their kind, how to call them, what the model makes."""

LATE = {
    "a block is used twice": lambda block, x, number, blocks, _: blocks[3](block(x)) if number == 4 else block(x),
    "a function whose effects are unknown, after blocks were copied": count_and_look,
    "a copied block is inspected": lambda block, x, *_: block(x) * block.factor,
}
"""Ways to call blocks that show too late that they should have been interpreted, by the reason."""


def forget():
    """Resets all state outside of blocks that their calls change."""
    global FLAG
    FLAG = False
    SHARED.calls = 0
    for each in (TICKS, SHARED.names, Runs.collect.__defaults__[0]):
        each.clear()


class Doubled(nn.Linear):
    def forward(self, x):
        return super().forward(x) * 2


def put(name, *values):
    """Returns changes that set an attribute of the second block to each of these values."""
    return [lambda one, other, value=value: setattr(other, name, value) for value in values]


LISTED = {
    "alike": [
        lambda one, other: setattr(other.linear, "weight", one.linear.weight),
        lambda one, other: other.shift.data.fill_(9),
        *put("number", -17),
    ],
    "not alike": [
        lambda one, other: setattr(other, "gain", other.linear.bias),
        *put("factor", 3.0, 2, True, torch.ones(WIDTH)),
        *put("extra", 1),
        lambda one, other: setattr(other.gain, "grad", torch.ones(WIDTH)),
        lambda one, other: other.eval(),
        lambda one, other: other._non_persistent_buffers_set.add("shift"),
        lambda one, other: other.register_forward_hook(lambda module, args, output: output * 2),
    ],
    "of another form": [
        lambda one, other: other.linear.weight.requires_grad_(False),
        *put("shift", torch.ones(1), torch.ones(WIDTH, dtype=torch.float16)),
        lambda one, other: setattr(other.linear, "bias", None),
        lambda one, other: setattr(other, "forward", functools.partial(lambda module, x: x, other)),
        *put("__class__", IN_PLACE),
        lambda one, other: setattr(other.linear, "__class__", Doubled),
        lambda one, other: setattr(other, "linear", one.linear),
    ],
    "with other containers": [
        lambda one, other: other.sizes.append(2),
        *put("sizes", (1, 2)),
        lambda one, other: other.table.update(a=(1, [2.0])),
        lambda one, other: other.table.update(b=3),
    ],
}
CHANGES = {what: (what == "alike", changes) for what, changes in LISTED.items()}
"""Whether the second of two blocks is still written out, and the changes to it that are tried.

Behind some changes less is written out. They are the last ones of their groups.
"""
