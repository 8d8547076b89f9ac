"""Models of five blocks that are alike but for one thing, which is each time another."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from hostile_programs.observation import Runner, program

X = torch.linspace(-1, 1, 4).reshape(2, 2)
COUNT = 5
DEPTH = 0


@dataclass
class Config:
    """What all blocks share, as models have it."""

    scale: float = 2.0
    names: dict[str, Any] = field(default_factory=lambda: {"act": "tanh"})


class Block(nn.Module):
    """A residual block as models have it: parameters, a config, its own number."""

    def __init__(self, config: Config, index: int):
        super().__init__()
        self.config, self.block_idx = config, index
        self.weight = nn.Parameter(torch.randn(2, 2) * 0.3)

    def forward(self, x):
        return x + torch.tanh(x @ self.weight) * self.config.scale


class Stack(nn.Module):
    """Blocks, one after the other."""

    def __init__(self, block: Callable[..., nn.Module] = Block, config: Config | None = None):
        super().__init__()
        self.config = config or Config()
        self.blocks = nn.ModuleList(block(self.config, index) for index in range(COUNT))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


@program
def one_attribute_differs(run: Runner) -> None:
    class Scaled(Block):
        def forward(self, x):
            return super().forward(x) * self.factor

    def block(config, index):
        made = Scaled(config, index)
        made.factor = 3 if index == 4 else 2
        return made

    model = Stack(block)
    run(model, X)
    for place, factor in ((4, True), (2, -0.0), (1, X[0])):
        model.blocks[place].factor = factor
        run(model, X)
    del model.blocks[3].factor
    run(model, X)
    Scaled.factor = 7
    run(model, X)


class Buffered(Block):
    """A block with buffers."""

    def __init__(self, config: Config, index: int):
        super().__init__(config, index)
        self.register_buffer("mask", torch.ones(2))
        self.register_buffer("maybe", None if index != 4 else torch.full((2,), 3.0), persistent=False)

    def forward(self, x):
        x = super().forward(x) * self.mask
        return x if self.maybe is None else x + self.maybe


@program
def a_buffers_value_and_its_presence_differ(run: Runner) -> None:
    model = Stack(Buffered)
    run(model, X)
    model.blocks[3].mask.mul_(5)
    run(model, X)
    model.blocks[3].mask = torch.ones(2, dtype=torch.float64)
    run(model, X)
    model.blocks[2].maybe = torch.ones(1)
    run(model, X)
    model.blocks[-1].mask = model.blocks[1].mask
    run(model, X)
    model.blocks[1].mask = model.blocks[0].weight.detach()[0]
    run(model, X)


@program
def attributes_are_set(run: Runner) -> None:
    class Setting(Block):
        def forward(self, x):
            self.last = x
            self.config.calls = getattr(self.config, "calls", 0) + 1
            return super().forward(x) * self.config.calls

    run(Stack(Setting), X)

    class Counting(Block):
        calls = 0

        def forward(self, x):
            self.calls += 1
            return super().forward(x) * self.calls

    run(Stack(Counting), X)


@program
def a_global_and_a_closure_change_on_the_way(run: Runner) -> None:
    count = 0

    class Global(Block):
        def forward(self, x):
            global DEPTH
            DEPTH = DEPTH + 1
            return super().forward(x) * DEPTH

    class Closed(Block):
        def forward(self, x):
            nonlocal count
            count += 1
            return super().forward(x) * count

    class Shared(Block):
        def forward(self, x):
            self.config.names[f"n{len(self.config.names)}"] = x
            return super().forward(x) * len(self.config.names)

    global DEPTH
    DEPTH = 0
    for each in (Global, Closed, Shared):
        run(Stack(each), X)
    DEPTH = 0


@program
def other_inputs_than_tensors(run: Runner) -> None:
    class Taking(Block):
        def forward(self, x, rope, mask=None, *, scale=1, flags=()):
            cos, sin = rope
            x = x * cos + sin
            if mask is not None:
                x = x + mask
            return super().forward(x) * scale + len(flags)

    class Giving(Stack):
        def forward(self, x, rope, mask=None, way=0):
            for place, block in enumerate(self.blocks):
                if way == 1 and place == 4:
                    x = block(x, rope, mask=mask, scale=2)
                elif way == 2:
                    x = block(x, rope, flags=[1] * place)
                elif way == 3:
                    x = block(x, rope, x if place == 4 else mask)
                else:
                    x = block(x, rope, mask)
            return x

    model, rope = Giving(Taking), (torch.ones(2), torch.zeros(2))
    for way in range(1, 4):
        run(model, X, rope, way=way)
    run(model, X, (rope[0], rope[0]), torch.ones(2, 2))
    run(model, X, (1.0, 0))


@program
def other_outputs_than_tensors(run: Runner) -> None:
    class Giving(Block):
        def forward(self, x, cache):
            cache.append(x)
            return super().forward(x), {"n": self.block_idx, "x": x}

    class Caching(Stack):
        def forward(self, x):
            cache, total = [], 0
            for block in self.blocks:
                x, info = block(x, cache)
                total = total + info["n"] * info["x"]
            return x + total + sum(cache), len(cache)

    class Constant(Block):
        def forward(self, x):
            return self.weight

    class Nothing(Block):
        def forward(self, x):
            super().forward(x)

    class Dropping(Stack):
        def forward(self, x):
            for block in self.blocks:
                block(x)
            return x

    for model in (Caching(Giving), Stack(Constant), Dropping(Nothing)):
        run(model, X)


@program
def containers_differ(run: Runner) -> None:
    class Holding(Block):
        def __init__(self, config, index):
            super().__init__(config, index)
            self.sizes, self.table, self.pair = [1, 2], {"a": (1, [2])}, (1, "x")

        def forward(self, x):
            return super().forward(x) * len(self.sizes) + self.table["a"][1][0] + self.sizes[-1] + len(self.pair)

    model = Stack(Holding)
    run(model, X)
    model.blocks[3].sizes.append(2)
    run(model, X)
    model.blocks[4].table["a"] = (1, [2.0])
    model.blocks[2].sizes = (1, 2)
    run(model, X)
    model.blocks[1].pair = [1, "x"]
    model.blocks[1].table["b"] = 3
    run(model, X)


@program
def blocks_that_return_what_is_outside(run: Runner) -> None:
    outside = torch.ones(2)

    class Outside(Block):
        def forward(self, x):
            return super().forward(x) + outside * self.other.weight.sum()

    model = Stack(Outside)
    for place, block in enumerate(model.blocks):
        block.__dict__["other"] = model.blocks[place - 1]
    run(model, X)
    model.blocks[4].__dict__["other"] = model.blocks[4]
    run(model, X)


@program
def code_around_blocks_has_effects(run: Runner) -> None:
    log, state = [], {"d": 1, "k": 1}

    class Counted:
        def __enter__(self):
            state["d"] += 1

        def __exit__(self, *error):
            state["d"] -= 1

    class Reading(Block):
        def forward(self, x):
            return super().forward(x) * state["k"]

    class Logging(Stack):
        def forward(self, x, way):
            log.append(1)
            x = super().forward(x)
            if way:
                raise ValueError(len(log))
            return x * len(log) + self.blocks[-1].block_idx

    class Within(Stack):
        def forward(self, x):
            with Counted():
                x = super().forward(x) * state["d"]
            return x + self.blocks[-1].block_idx

    class Between(Stack):
        def forward(self, x):
            for place, block in enumerate(self.blocks):
                if place == 4:
                    operator.setitem(state, "k", state["k"] + 2)
                x = block(x)
            return x + self.blocks[-1].block_idx

    run(Logging(), X, 0)
    run(Logging(), X, 1)
    for model in (Within(), Between(Reading)):
        run(model, X)
    run.note("state", (log, state))
