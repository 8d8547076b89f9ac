"""Models of six blocks that are alike but for one thing, which is each time another."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as global_hooks

from hostile_programs.observation import Runner, program

X = torch.linspace(-1, 1, 4).reshape(2, 2)
COUNT = 6
SCALES = [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
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
def all_alike(run: Runner) -> None:
    model = Stack()
    run(model, X)
    run(model, X)
    run(model, torch.ones(3, 2))
    run(model, X.clone().requires_grad_())


@program
def in_a_sequential(run: Runner) -> None:
    run(nn.Sequential(*(Block(Config(), index) for index in range(COUNT))), X)


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
    for place, factor in ((3, 2.0), (5, True), (2, -0.0), (2, 0.0), (4, 2), (1, X[0])):
        model.blocks[place].factor = factor
        run(model, X)
    del model.blocks[3].factor
    run(model, X)
    Scaled.factor = 7
    run(model, X)


@program
def numbers_that_look_alike_in_blocks(run: Runner) -> None:
    class Scaled(Block):
        def forward(self, x):
            return x * self.factor + self.shift

    factors = [1, 1, 1.0, True, 1, 1]
    shifts = [0.0, 0.0, 0.0, -0.0, 0, False]

    def block(config, index):
        made = Scaled(config, index)
        made.factor, made.shift = factors[index], shifts[index]
        return made

    run(Stack(block), X)
    factors[:] = [float("nan")] * 5 + [float("inf")]
    run(Stack(block), X)


@program
def the_index_decides(run: Runner) -> None:
    class Branch(Block):
        def forward(self, x):
            if self.block_idx == 4:
                x = x * 17
            if self.block_idx > 4:
                x = x - 1
            return super().forward(x)

    run(Stack(Branch), X)


@program
def the_index_is_compared_without_effect(run: Runner) -> None:
    class Branch(Block):
        def forward(self, x):
            if self.block_idx == 17:
                x = x * 17
            if self.block_idx < 0 or self.block_idx in (99, 100) or not self.block_idx != -1:
                x = x - 1
            return super().forward(x)

    model = Stack(Branch)
    run(model, X)
    run(model, X)
    model.blocks[3].block_idx = 17
    run(model, X)
    model.blocks[3].block_idx = 3
    run(model, X)
    model.blocks[3].block_idx = 3.0
    run(model, X)


@program
def the_index_is_a_number(run: Runner) -> None:
    class Scaled(Block):
        def forward(self, x):
            return super().forward(x) * (self.block_idx + 1)

    class Shifted(Block):
        def forward(self, x):
            return x + self.block_idx / 2 + (self.block_idx and 3)

    run(Stack(Scaled), X)
    run(Stack(Shifted), X)


@program
def the_index_is_a_subscript(run: Runner) -> None:
    class Looked(Block):
        def forward(self, x):
            return super().forward(x) * SCALES[self.block_idx]

    class Named(Block):
        def forward(self, x):
            return super().forward(x) * getattr(self.config, f"scale_{self.block_idx}", 1)

    class OfTensor(Block):
        def forward(self, x, table):
            return x + table[self.block_idx]

    class Many(Stack):
        def forward(self, x, table):
            for block in self.blocks:
                x = block(x, table)
            return x

    model = Stack(Looked)
    run(model, X)
    SCALES[3] = 2.0
    run(model, X)
    SCALES[3] = 1.0
    config = Config()
    config.scale_5 = 3
    run(Stack(Named, config), X)
    run(Many(OfTensor), X, torch.ones(COUNT, 2))
    run(Many(OfTensor), X, [torch.ones(2)] * COUNT)


@program
def the_index_is_printed_and_called(run: Runner) -> None:
    seen = []

    def opaque(index):
        seen.append(index)
        return len(seen)

    class Calling(Block):
        def forward(self, x):
            return x * opaque(self.block_idx) + len(str(self.block_idx)) + int(f"{self.block_idx}1")

    run(Stack(Calling), X)
    run.note("seen", seen)


@program
def parity_decides(run: Runner) -> None:
    class Alternating(Block):
        def __init__(self, config, index):
            super().__init__(config, index)
            self.sliding = index % 2 == 0

        def forward(self, x):
            x = torch.sin(x) if self.sliding else torch.cos(x)
            return x * 2 if self.block_idx % 2 else super().forward(x)

    run(Stack(Alternating), X)


@program
def one_class_differs(run: Runner) -> None:
    class Other(Block):
        def forward(self, x):
            return x * 2 - torch.tanh(x @ self.weight)

    class Same(Block):
        """A class of its own with the same code."""

    def block(config, index):
        return (Other if index == 3 else Same if index == 4 else Block)(config, index)

    model = Stack(block)
    run(model, X)
    model.blocks[5].__class__ = Other
    run(model, X)


@program
def forward_differs_on_one_instance(run: Runner) -> None:
    model = Stack()
    block = model.blocks[4]
    block.forward = lambda x: x * 3
    run(model, X)
    del block.forward
    run(model, X)
    block.forward = functools.partial(Block.forward, block)
    run(model, X)


@program
def a_method_differs_on_one_instance(run: Runner) -> None:
    class Norming(Block):
        def norm(self, x):
            return x - 1

        def forward(self, x):
            return super().forward(self.norm(x))

    model = Stack(Norming)
    model.blocks[4].norm = lambda x: x * 5
    run(model, X)
    model.blocks[3].norm = torch.sin
    run(model, X)


@program
def one_has_a_hook(run: Runner) -> None:
    model, events = Stack(), []
    handle = model.blocks[4].register_forward_hook(lambda module, args, output: output * 2)
    run(model, X)
    other = model.blocks[3].register_forward_pre_hook(lambda module, args: events.append(module.block_idx))
    run(model, X)
    handle.remove()
    run(model, X)
    other.remove()
    run(model, X)
    model.blocks[5].register_full_backward_hook(lambda module, before, after: None)
    run(model, X)
    run.note("events", events)


@program
def all_have_a_hook(run: Runner) -> None:
    model, events = Stack(), []

    def note(module, args, output):
        events.append(module.block_idx)
        return output + len(events)

    for block in model.blocks:
        block.register_forward_hook(note)
    run(model, X)
    run.note("events", events)


@program
def a_hook_for_all_modules_looks_at_one(run: Runner) -> None:
    model = Stack()

    def look(module, args, output):
        return output * 2 if getattr(module, "block_idx", 0) == 4 else None

    handle = global_hooks.register_module_forward_hook(look)
    try:
        run(model, X)
    finally:
        handle.remove()


@program
def an_inner_module_has_a_hook(run: Runner) -> None:
    class Deep(Block):
        def __init__(self, config, index):
            super().__init__(config, index)
            self.inner = nn.Linear(2, 2)

        def forward(self, x):
            return super().forward(self.inner(x))

    model = Stack(Deep)
    model.blocks[4].inner.register_forward_hook(lambda module, args, output: output * 2)
    run(model, X)


@program
def inner_modules_differ(run: Runner) -> None:
    class Deep(Block):
        def __init__(self, config, index):
            super().__init__(config, index)
            self.inner = nn.Sequential(nn.Linear(2, 2, bias=index != 3), nn.Tanh() if index != 4 else nn.Sigmoid())
            self.drop = nn.Dropout(0.0 if index != 5 else 0.5)

        def forward(self, x):
            return super().forward(self.drop(self.inner(x)))

    model = Stack(Deep).eval()
    run(model, X)
    model.blocks[4].inner.append(nn.ReLU())
    run(model, X)
    model.blocks[3].drop.train()
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
    model.blocks[5].mask = model.blocks[1].mask
    run(model, X)
    model.blocks[1].mask = model.blocks[0].weight.detach()[0]
    run(model, X)


@program
def a_buffers_value_is_read(run: Runner) -> None:
    class Reading(Buffered):
        def forward(self, x):
            return x * self.mask.shape[0] + (2 if self.mask.dtype == torch.float64 else 3)

    class Deciding(Buffered):
        def forward(self, x):
            return x if self.mask[0] > 0 else -x

    model = Stack(Reading)
    model.blocks[4].mask = torch.ones(2, dtype=torch.float64)
    run(model, X)
    run(Stack(Deciding), X)


@program
def buffers_are_updated(run: Runner) -> None:
    class Counting(Buffered):
        def __init__(self, config, index):
            super().__init__(config, index)
            self.register_buffer("steps", torch.tensor(0))

        def forward(self, x):
            self.steps.add_(1)
            self.mask = self.mask * 0.5
            return super().forward(x) + self.steps

    model = Stack(Counting)
    run(model, X)
    run(model, X)

    def normed(config, index):
        return nn.Sequential(Block(config, index), nn.BatchNorm1d(2))

    model = Stack(normed)
    run(model, X)
    run(model.eval(), X)


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

    model = Stack(Counting)
    run(model, X)
    run(model, X)


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

    class Listed(Block):
        def forward(self, x):
            events.append(self.block_idx)
            return super().forward(x) * len(events)

    class Taken(Block):
        def forward(self, x):
            return super().forward(x) * next(numbers)

    class Shared(Block):
        def forward(self, x):
            self.config.names[f"n{len(self.config.names)}"] = x
            return super().forward(x) * len(self.config.names)

    events = []
    numbers = iter(range(1, 50))
    global DEPTH
    DEPTH = 0
    for each in (Global, Closed, Listed, Taken, Shared):
        run(Stack(each), X)
    DEPTH = 0
    run.note("events", events)


@program
def parameters_are_shared(run: Runner) -> None:
    model = Stack()
    model.blocks[4].weight = model.blocks[1].weight
    run(model, X)
    model.blocks[5].weight = model.blocks[4].weight
    run(model, X)
    for block in model.blocks:
        block.weight = model.blocks[0].weight
    run(model, X)
    model = Stack()
    model.weight = model.blocks[3].weight
    run(model, X)


@program
def a_block_is_used_twice(run: Runner) -> None:
    model = Stack()
    model.blocks[4] = model.blocks[1]
    run(model, X)
    model.blocks[5] = model.blocks[4]
    run(model, X)

    class Again(Stack):
        def forward(self, x):
            for _ in range(2):
                x = super().forward(x)
            for block in self.blocks:
                x = block(block(x))
            return self.blocks[2](x)

    run(Again(), X)


@program
def in_another_order(run: Runner) -> None:
    class Ordered(Stack):
        def forward(self, x, order):
            for place in order:
                x = self.blocks[place](x)
            return x

    model = Ordered()
    run(model, X, (0, 1, 2, 3, 4, 5))
    run(model, X, (5, 4, 3, 2, 1, 0))
    run(model, X, (0, 2, 4, 5))
    run(model, X, (3, 1, 5, 5, 0, 2))


@program
def nested_stacks(run: Runner) -> None:
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.groups = nn.ModuleDict(
                {str(n): nn.Sequential(Block(Config(), n), Block(Config(), n)) for n in range(5)}
            )

        def forward(self, x):
            for name, group in self.groups.items():
                x = group(x) + len(name)
            return x

    model = Outer()
    run(model, X)
    model.groups["3"][1].config.scale = 5.0
    run(model, X)


@program
def metadata_of_one_parameter_differs(run: Runner) -> None:
    model = Stack()
    model.blocks[4].weight.requires_grad_(False)
    run(model, X)
    model.blocks[3].weight = nn.Parameter(torch.randn(2, 2, dtype=torch.float64))
    run(model, X)

    class Wide(Block):
        def __init__(self, config, index):
            super().__init__(config, index)
            self.weight = nn.Parameter(torch.randn(2, 1 if index == 4 else 2))

    run(Stack(Wide), X)
    model = Stack()
    model.blocks[4].weight = nn.Parameter(torch.randn(2, 2).t())
    run(model, X)
    del model.blocks[4].weight
    model.blocks[4].weight = torch.randn(2, 2)
    run(model, X)
    del model.blocks[5].weight
    run(model, X)


@program
def inputs_change_on_the_way(run: Runner) -> None:
    class Growing(Block):
        def forward(self, x):
            return torch.cat([x, x[:1]]) if self.block_idx in (2, 4) else super().forward(x)

    class Casting(Block):
        def forward(self, x):
            return super().forward(x.to(torch.float32)).to(torch.float64 if self.block_idx == 3 else torch.float32)

    class Detaching(Stack):
        def forward(self, x):
            for place, block in enumerate(self.blocks):
                x = block(x.detach() if place == 3 else x)
            return x

    for model in (Stack(Growing), Stack(Casting), Detaching()):
        run(model, X)


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
                    x = block(x, rope, mask, scale=place)
                elif way == 3 and place > 3:
                    x = block(x, (rope[1], rope[0]), scale=1.0)
                elif way == 4:
                    x = block(x, rope, flags=[1] * place)
                elif way == 5:
                    x = block(x, rope, x if place == 4 else mask)
                else:
                    x = block(x, rope, mask)
            return x

    model, rope = Giving(Taking), (torch.ones(2), torch.zeros(2))
    for way in range(6):
        run(model, X, rope, way=way)
    run(model, X, rope, torch.ones(2, 2))
    run(model, X, (rope[0], rope[0]))
    run(model, X, (X, X))
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

    class Same(Block):
        def forward(self, x):
            return x

    class View(Block):
        def forward(self, x):
            return x.view(2, 2)

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

    for model in (Caching(Giving), Stack(Same), Stack(View), Stack(Constant), Dropping(Nothing)):
        run(model, X)


@program
def a_list_of_all_outputs(run: Runner) -> None:
    class Collecting(Stack):
        def forward(self, x):
            seen = (x,)
            for block in self.blocks:
                x = block(x)
                seen = (*seen, x)
            return seen

    class Dense(Stack):
        def forward(self, x):
            seen = [x]
            for block in self.blocks:
                seen.append(block(sum(seen)))
            return seen[-1]

    class Jumping(Stack):
        def forward(self, x):
            first = None
            for block in self.blocks:
                x = block(x if first is None else x + first)
                first = x if first is None else first
            return x

    for model in (Collecting(), Dense(), Jumping()):
        run(model, X)


@program
def exceptions_in_blocks(run: Runner) -> None:
    class Catching(Block):
        def forward(self, x):
            try:
                return super().forward(x) * {0: 1, 1: 1, 2: 1, 3: 1}[self.block_idx]
            except KeyError:
                return x - 1

    class Raising(Block):
        def forward(self, x):
            if self.block_idx == 4:
                raise ValueError(f"block {self.block_idx}")
            return super().forward(x)

    class Around(Stack):
        def forward(self, x):
            for block in self.blocks:
                try:
                    x = block(x)
                except ValueError as error:
                    x = x * len(str(error))
            return x

    run(Stack(Catching), X)
    run(Stack(Raising), X)
    run(Around(Raising), X)


@program
def in_place_in_blocks(run: Runner) -> None:
    class InPlace(Block):
        def forward(self, x):
            y = x * 1
            y += super().forward(x)
            y.mul_(2)
            return y

    class OfInput(Block):
        def forward(self, x):
            x.add_(1)
            return x

    class OfParameter(Block):
        def forward(self, x):
            with torch.no_grad():
                self.weight.mul_(0.5)
            return super().forward(x)

    run(Stack(InPlace), X)
    run(Stack(OfInput), X.clone())
    run(Stack(OfParameter), X)


@program
def modes_in_blocks(run: Runner) -> None:
    class NoGrad(Block):
        def forward(self, x):
            with torch.no_grad():
                y = super().forward(x)
            return y + x @ self.weight

    class Frozen(Block):
        def forward(self, x):
            with torch.set_grad_enabled(self.block_idx != 4):
                return super().forward(x)

    class Cast(Block):
        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.block_idx > 2):
                return super().forward(x)

    class Outside(Stack):
        def forward(self, x):
            for place, block in enumerate(self.blocks):
                with torch.set_grad_enabled(place != 4):
                    x = block(x)
            return x

    class CastOutside(Stack):
        def forward(self, x):
            for place, block in enumerate(self.blocks):
                if place == 4:
                    with torch.autocast("cpu", dtype=torch.bfloat16):
                        x = block(x)
                else:
                    x = block(x)
            return x

    for model in (Stack(NoGrad), Stack(Frozen), Stack(Cast), Outside(), CastOutside()):
        run(model, X)
    with torch.no_grad():
        run(Stack(), X)


@program
def random_numbers_in_blocks(run: Runner) -> None:
    class Dropping(Block):
        def __init__(self, config, index):
            super().__init__(config, index)
            self.drop = nn.Dropout(0.5)

        def forward(self, x):
            return super().forward(self.drop(x)) + torch.rand(2) * 0.1

    model = Stack(Dropping)
    torch.manual_seed(5)
    run(model, X)
    model.blocks[4].drop.p = 0.1
    torch.manual_seed(5)
    run(model, X)
    model.blocks[3].eval()
    torch.manual_seed(5)
    run(model, X)


@program
def training_flips_in_one(run: Runner) -> None:
    class Watching(Block):
        def forward(self, x):
            return super().forward(x) * (2 if self.training else 3)

    model = Stack(Watching)
    run(model, X)
    model.blocks[4].eval()
    run(model, X)
    model.eval()
    run(model, X)


@program
def properties_and_getattr_in_blocks(run: Runner) -> None:
    class Proper(Block):
        @property
        def factor(self):
            return 5 if self.block_idx == 4 else 2

        def forward(self, x):
            return super().forward(x) * self.factor

    class Made(Block):
        def __getattr__(self, name):
            if name == "factor":
                return self.block_idx + 1
            return super().__getattr__(name)

        def forward(self, x):
            return super().forward(x) * self.factor

    class Has(Block):
        def forward(self, x):
            x = x * 2 if hasattr(self, "special") else x
            return super().forward(x) + getattr(self, "shift", 0) + len(vars(self)) * 0

    run(Stack(Proper), X)
    run(Stack(Made), X)
    model = Stack(Has)
    model.blocks[4].special = None
    model.blocks[3].shift = 2
    run(model, X)


@program
def configs_differ(run: Runner) -> None:
    def own(config, index):
        return Block(Config(scale=2.0 if index != 4 else 3.0), index)

    model = Stack(own)
    run(model, X)
    model.blocks[3].config = model.blocks[4].config
    run(model, X)
    model.blocks[2].config.names["act"] = "other"
    run(model, X)

    class Other(Config):
        pass

    model.blocks[1].config = Other()
    run(model, X)

    class Acting(Block):
        def forward(self, x):
            return getattr(torch, self.config.names["act"])(x) + super().forward(x)

    run(Stack(Acting, Config()), X)

    def acting(config, index):
        return Acting(Config(names={"act": "tanh" if index != 4 else "sin"}), index)

    model = Stack(acting)
    run(model, X)
    del model.blocks[4].config.names["act"]
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
    run(model, X)
    model.blocks[5].table = model.blocks[4].table
    run(model, X)
    model.blocks[2].sizes = (1, 2)
    run(model, X)
    model.blocks[1].pair = [1, "x"]
    run(model, X)
    model.blocks[1].table["b"] = 3
    run(model, X)


@program
def functions_as_attributes(run: Runner) -> None:
    def make(scale):
        def act(x):
            return torch.tanh(x) * scale

        return act

    class Acting(Block):
        def __init__(self, config, index):
            super().__init__(config, index)
            self.act = make(2 if index != 4 else 3)

        def forward(self, x):
            return self.act(super().forward(x))

    model = Stack(Acting)
    run(model, X)
    model.blocks[3].act = torch.sin
    run(model, X)
    model.blocks[2].act = functools.partial(torch.mul, 2)
    run(model, X)
    same = make(2)
    for block in model.blocks:
        block.act = same
    run(model, X)
    same.__closure__[0].cell_contents = 9
    run(model, X)


@program
def one_more_and_one_less(run: Runner) -> None:
    model = Stack()
    run(model, X)
    model.blocks.append(Block(model.config, 6))
    run(model, X)
    del model.blocks[2]
    run(model, X)
    model.blocks.insert(0, nn.Identity())
    run(model, X)
    model.config.scale = 4.0
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
def blocks_of_functions(run: Runner) -> None:
    weights = [torch.randn(2, 2) * 0.3 for _ in range(COUNT)]

    def block(x, weight, n):
        return x + torch.tanh(x @ weight) * (1 if n != 4 else 2)

    def f(x):
        for n, weight in enumerate(weights):
            x = block(x, weight, n)
        return x

    run(f, X)
    weights[3] = weights[2]
    run(f, X)


@program
def as_language_models_have_them(run: Runner) -> None:
    class Attention(nn.Module):
        def __init__(self, config, index):
            super().__init__()
            self.qkv, self.out = nn.Linear(4, 12, bias=False), nn.Linear(4, 4, bias=False)
            self.block_idx, self.config = index, config
            self.kv_cache = None

        def forward(self, x, cos, sin, mask=None, input_pos=None):
            q, k, v = self.qkv(x).split(4, dim=-1)
            q, k = q * cos + q * sin, k * cos
            if input_pos is not None and not isinstance(self.kv_cache, nn.Module):
                raise TypeError("no cache")
            if self.block_idx == 3 and self.config.scale > 2:
                mask = None
            return self.out(nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None))

    class Layer(nn.Module):
        def __init__(self, config, index):
            super().__init__()
            self.norm_1, self.norm_2 = nn.LayerNorm(4), nn.LayerNorm(4)
            self.attn, self.mlp = Attention(config, index), nn.Sequential(nn.Linear(4, 4), nn.GELU())

        def forward(self, x, cos, sin, mask=None):
            x = x + self.attn(self.norm_1(x)[:, None], cos, sin, mask)[:, 0]
            return x + self.mlp(self.norm_2(x))

    class Model(nn.Module):
        def __init__(self, config):
            super().__init__()
            self.embed, self.head = nn.Embedding(5, 4), nn.Linear(4, 5)
            self.h = nn.ModuleList(Layer(config, index) for index in range(5))
            self.register_buffer("cos", torch.ones(1, 4), persistent=False)
            self.register_buffer("sin", torch.zeros(1, 4), persistent=False)

        def forward(self, tokens):
            x, cos, sin = self.embed(tokens), self.cos[: tokens.shape[1]], self.sin[: tokens.shape[1]]
            for layer in self.h:
                x = layer(x, cos, sin)
            return self.head(x)

    config = Config()
    model, tokens = Model(config), torch.tensor([[0, 1, 4]])
    run(model, tokens)
    config.scale = 3.0
    run(model, tokens)
    model.h[4].norm_1.eps = 1e-3
    run(model, tokens)
    model.h[3].attn.qkv.weight = model.h[2].attn.qkv.weight
    run(model, tokens)


@program
def parameters_are_used_outside_too(run: Runner) -> None:
    class Tied(Stack):
        def forward(self, x, way):
            x = x @ self.tied if way != "after" else x
            x = super().forward(x)
            return x @ self.tied + self.kept if way != "before" else x

    model = Tied(Buffered)
    model.tied, model.kept = model.blocks[5].weight, model.blocks[3].mask
    for way in ("before", "after", "both"):
        run(model, X, way)


@program
def effects_before_a_block_is_looked_at_again(run: Runner) -> None:
    """Whoever begins a trace anew has the effects of the first attempt as well."""
    log, numbers, state = [], iter(range(1, 50)), {"depth": 0}

    class Counted:
        def __enter__(self):
            state["depth"] += 1

        def __exit__(self, *error):
            state["depth"] -= 1

    class Logging(Stack):
        def forward(self, x):
            log.append(1)
            return super().forward(x) * len(log) + self.blocks[5].block_idx

    class Taking(Stack):
        def forward(self, x):
            return super().forward(x * next(numbers)) + self.blocks[5].block_idx

    class Entering(Stack):
        def forward(self, x):
            with Counted():
                return super().forward(x) * state["depth"] + self.blocks[5].block_idx

    class Late(Stack):
        def forward(self, x):
            x = super().forward(x)
            log.append(2)
            return x * len(log) + self.blocks[5].block_idx

    for each in (Logging, Taking, Entering, Late):
        run(each(), X)
    run.note("effects", (log, next(numbers), state))


@program
def effects_before_an_error(run: Runner) -> None:
    import operator

    log, state = [], {"scale": 1}

    class Raising(Stack):
        def forward(self, x):
            log.append(1)
            super().forward(x)
            raise ValueError(len(log))

    class Catching(Stack):
        def forward(self, x):
            try:
                log.append(1)
                x = super().forward(x)
                raise ValueError(len(log))
            except ValueError as error:
                return x * len(log) + self.blocks[5].block_idx + len(str(error))

    class Scaled(Block):
        def forward(self, x):
            return super().forward(x) * state["scale"]

    class Setting(Stack):
        def forward(self, x):
            for place, block in enumerate(self.blocks):
                if place == 4:
                    operator.setitem(state, "scale", 3)
                x = block(x)
            return x

    for model in (Raising(), Catching(), Setting(Scaled)):
        run(model, X)
    run.note("effects", (log, state))


@program
def state_changes_between_blocks(run: Runner) -> None:
    state, listed, one = {"k": 1}, [1], Config()

    def numbers():
        while True:
            listed.append(0)
            yield 1

    taken = numbers()

    class Reading(Block):
        def forward(self, x):
            return super().forward(x) * state.get("z", 1) * len(listed) * one.scale + getattr(self, "extra", 1)

    changes = [
        lambda model: state.setdefault("z", 5),
        lambda model: any(listed.append(k) for k in (2,)),
        lambda model: listed.__iadd__([3]),
        lambda model: setattr(one, "scale", 4.0),
        lambda model: vars(one).update(scale=4.0),
        lambda model: setattr(model.blocks[4], "extra", 3),
        lambda model: model.blocks[4].eval(),
        lambda model: next(taken),
        lambda model: functools.reduce(lambda a, b: a.append(b) or a, [1, 2], listed),
        lambda model: functools.partial(listed.append, 2)(),
    ]
    for change in changes:

        class Changing(Stack):
            def forward(self, x):
                for place, block in enumerate(self.blocks):
                    if place == 4:
                        change(self)
                    x = block(x)
                return x

        run(Changing(Reading), X)
        state.pop("z", None)
        listed[:] = [1]
        one.scale = 2.0


@program
def blocks_that_find_themselves(run: Runner) -> None:
    import operator

    known: dict[str, Any] = {}

    class Matching(Block):
        def forward(self, x):
            match self:
                case Block(block_idx=4):
                    x = x * 17
                case Block(block_idx=n) if n > 4:
                    x = x * 5
            return super().forward(x)

    class Listed(Block):
        def forward(self, x):
            return super().forward(x) * (3 if self in known["some"] else 2)

    class Placed(Block):
        def forward(self, x):
            return super().forward(x) * (known["all"].index(self) + 1)

    class Same(Block):
        def forward(self, x):
            x = x * 3 if self is known["one"] or self.weight is known["one"].weight else x
            return super().forward(x) * (5 if self == known["one"] else 1)

    class Viewed(Block):
        def forward(self, x):
            for name, value in vars(self).items():
                if name == "block_idx" and value == 4:
                    x = x * 2
            return super().forward(x) * self.__dict__["block_idx"]

    class Taken(Block):
        place = property(operator.attrgetter("block_idx"))

        def extra_repr(self):
            return "x" * self.block_idx

        def forward(self, x):
            return super().forward(x) * self.place + len(repr(self)) + int("%d" % self.block_idx)

    for each in (Matching, Listed, Placed, Same, Viewed, Taken):
        model = Stack(each)
        known.update(all=tuple(model.blocks), some=[model.blocks[4]], one=model.blocks[4])
        run(model, X)


@program
def arguments_that_change_on_the_way(run: Runner) -> None:
    class Taking(Block):
        def forward(self, x, given):
            return super().forward(x) * (given() if callable(given) else given["k"])

    class Holder:
        k = 1

        def __getitem__(self, name):
            return self.k

    class Changing(Stack):
        def forward(self, x, way):
            number, table, holder, tables = 1, {"k": 1}, Holder(), [{"k": 1}, {"k": 2}]

            def get():
                return number

            for number, block in enumerate(self.blocks, 1):
                if number == 5:
                    table["k"] = 5
                    holder.k = 7
                    tables.reverse()
                x = block(x, (get, table, holder, tables[0], {"k": 2 if number == 5 else 1})[way])
            return x

    model = Changing(Taking)
    for way in range(5):
        run(model, X, way)


@program
def code_around_blocks_has_effects(run: Runner) -> None:
    log, state, numbers = [], {"d": 1, "k": 1}, iter(range(100))

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
            return x * len(log) + self.blocks[5].block_idx

    class Taking(Stack):
        def forward(self, x):
            return super().forward(x * next(numbers)) + self.blocks[5].block_idx

    class Within(Stack):
        def forward(self, x):
            with Counted():
                x = super().forward(x) * state["d"]
            return x + self.blocks[5].block_idx

    class Finally(Stack):
        def forward(self, x):
            try:
                return super().forward(x) + self.blocks[5].block_idx
            finally:
                log.append(2)

    class Between(Stack):
        def forward(self, x):
            for place, block in enumerate(self.blocks):
                if place == 4:
                    operator.setitem(state, "k", state["k"] + 2)
                x = block(x)
            return x + self.blocks[5].block_idx

    run(Logging(), X, 0)
    run(Logging(), X, 1)
    for model in (Taking(), Within(), Finally(), Between(Reading)):
        run(model, X)
    run.note("state", (log, state, next(numbers)))
