"""Backward reads nothing that user code may have written into since forward, unless plain Thunder reads it."""

import random

import pytest
import thunder
import torch
from behind_dynamo import compile_behind_dynamo
from models import compile_plain, compile_with
from torch import nn

import fusioncache

pytestmark = pytest.mark.usefixtures("eager_regions")


class Net(nn.Module):
    """Adds a buffer or an argument, which no gradient needs, to what a gradient needs."""

    def __init__(self, takes_argument):
        super().__init__()
        torch.manual_seed(0)
        self.takes_argument = takes_argument
        self.linear = nn.Linear(4, 4)
        self.register_buffer("mean", torch.full((4,), 3.0))
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x, shift):
        hidden = torch.tanh(self.linear(x)) + (shift if self.takes_argument else self.mean.view(1, 4))
        return torch.sin(hidden * self.scale)


def jit(model, **options):
    return compile_with(model, programs=False, **options)[0]


def compile_for_inductor(model):
    transform = fusioncache.FusionCache(cache=fusioncache.Cache(), backend="eager")
    return thunder.jit(model, executors=["torchcompile"], transforms=[transform])


WAYS = {
    "ours": jit,
    "alone": compile_plain,
    "behind dynamo": lambda model: compile_behind_dynamo(model)[0],
    "torchcompile": compile_for_inductor,
    "sums are recomputed": lambda model: jit(model, recompute="residual", residual="inline"),
}
WRITES = {
    "nothing": lambda model, shift, out: None,
    "a buffer": lambda model, shift, out: model.mean.mul_(2),
    "a buffer's data": lambda model, shift, out: model.mean.data.mul_(2),
    "an argument": lambda model, shift, out: shift.mul_(2),
    "an argument's data": lambda model, shift, out: shift.data.mul_(2),
    "a result's data": lambda model, shift, out: out.data.mul_(2),
}


def take_step(model, call, write):
    model.zero_grad()
    model.mean.data.fill_(3.0)
    shift = torch.full((4,), 0.25)
    out = call(torch.ones(1, 4), shift)
    loss = (out * torch.arange(4.0, device=out.device)).sum()
    write(model, shift, out)
    loss.backward()
    return [model.scale.grad, model.linear.weight.grad, model.linear.bias.grad]


@pytest.mark.parametrize("takes_argument", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_writes_between_forward_and_backward_change_no_gradient(way, takes_argument):
    model, own = Net(takes_argument), Net(takes_argument)
    call = WAYS[way](model)
    for what, write in WRITES.items():
        for one, other in zip(take_step(model, call, write), take_step(own, own, write), strict=True):
            torch.testing.assert_close(one, other, msg=lambda text, what=what: f"{what}: {text}")


@pytest.mark.gpu
@pytest.mark.parametrize("takes_argument", [False, True])
def test_writes_change_no_gradient_of_nvfusers_regions(takes_argument):
    model, own = Net(takes_argument).cuda(), Net(takes_argument)
    cache = fusioncache.Cache(record=False, store=False)
    call = thunder.jit(model, transforms=[fusioncache.FusionCache(cache=cache)])
    for write in WRITES.values():
        if takes_argument and write in (WRITES["an argument"], WRITES["an argument's data"]):
            continue  # the argument is a copy here
        found = take_step(model, lambda x, shift: call(x.cuda(), shift.cuda()), write)
        for one, other in zip(found, take_step(own, own, write), strict=True):
            torch.testing.assert_close(one.cpu(), other, rtol=1e-4, atol=1e-4)


UNARY = [
    torch.tanh,
    torch.sin,
    torch.rsqrt,
    lambda a: a * 0.5,
    lambda a: a.view(4, 1, 4).squeeze(1),
    lambda a: a[:, 1:].sum(1, keepdim=True) + a,
    lambda a: a.float(),
    lambda a: a.to(torch.bfloat16),
]
BINARY = [torch.add, torch.mul, torch.sub, lambda a, b: torch.where(a > b, a, b)]


class Drawn(nn.Module):
    """A random expression of a product, buffers, arguments and parameters, with one to three results."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.seed, self.linear = seed, nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.rand(4, 4))
        self.register_buffer("table", torch.rand(4, 4))
        self.register_buffer("row", torch.rand(4))
        self.to(torch.bfloat16 if seed % 2 else torch.float32)

    def forward(self, x, shift):
        chance = random.Random(self.seed)
        values = [self.linear(x).sigmoid(), shift, self.table, self.row.expand(4, 4), self.scale]
        for _ in range(7):
            first = chance.choice([values[0], *values[-3:]])
            if chance.random() < 0.5:
                values.append(chance.choice(UNARY)(first))
            else:
                values.append(chance.choice(BINARY)(first, chance.choice(values)))
        return tuple(values[-1 - place] + values[0] * 0 for place in range(chance.randint(1, 3)))


def draw_step(call, model, target, write):
    chance = torch.Generator().manual_seed(model.seed)
    given, shift = torch.rand(2, 4, 4, generator=chance).to(model.row.dtype)
    model.zero_grad()
    for buffer in model.buffers():
        buffer.data.copy_(torch.rand(buffer.shape, generator=chance))
    results = call(given, shift)
    loss = sum((result * (1 + place)).sum() for place, result in enumerate(results))
    written = [shift, model.table, model.row, *results]
    with torch.no_grad():
        write(written[target % len(written)])
    loss.backward()
    return [each.grad.float() for each in model.parameters() if each.grad is not None]


def test_random_expressions_have_eager_gradients_whatever_eager_lets_one_write():
    cases = 0
    for seed in range(12):
        model = Drawn(seed)
        call = jit(model)
        for target in range(6):
            try:
                expected = draw_step(model, model, target, lambda value: value.mul_(2))
            except RuntimeError as error:  # eager PyTorch saved what is written
                assert "modified by an inplace operation" in str(error)
                continue
            for write in (lambda value: value.mul_(2), lambda value: value.data.mul_(2)):
                found = draw_step(call, model, target, write)
                cases += 1
                if not any(each.isnan().any() for each in expected):
                    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05 if seed % 2 else 1e-4)
    assert cases > 75
