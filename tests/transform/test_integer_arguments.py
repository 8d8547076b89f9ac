"""Integers among the arguments, as Dynamo hands lengths over: sizes as others are, and looked at as others are."""

import pytest
import torch
from behind_dynamo import compile_behind_dynamo

WIDTH = 12
TABLE = torch.randn(64, WIDTH)


def cuts(x, number):
    """What Dynamo makes of a rotary table that is cut to the length."""
    return x * TABLE[:number].view(1, number, WIDTH)


def makes(x, number):
    return x + torch.arange(number)[:, None] + torch.ones(number, WIDTH).sum(0)


def compares(x, number):
    return x * 2 if number > 7 else x + 1


def tensors(number, rows=2):
    generator = torch.Generator().manual_seed(number)
    return torch.randn(rows, number, WIDTH, generator=generator, requires_grad=True)


def run(compiled, *args, **kwargs):
    result = compiled(*args, **kwargs)
    tensor = result[0] if isinstance(result, tuple) else result
    (gradient,) = torch.autograd.grad(tensor.sum(), args[0])
    return result, gradient


@pytest.mark.usefixtures("eager_regions")
@pytest.mark.parametrize("program", [cuts, compares], ids=lambda each: each.__name__)
def test_behind_dynamo_with_symbols_from_the_first_call_on(program, tmp_path):
    """A number with a point is among the arguments as well. It is a tensor there, which is read in each call."""

    def scaled(x, number, scale):
        return program(x * scale + scale * scale + 1 / number, number)

    compiled, transform = compile_behind_dynamo(scaled, store=tmp_path, dynamic=True)
    for number, scale in ((6, 0.3), (9, 0.7), (5, 0.3), (20, -1.5)):
        x = tensors(number)
        (found, gradient), (expected, wanted) = run(compiled, x, number, scale), run(scaled, x, number, scale)
        torch.testing.assert_close([found, gradient], [expected, wanted])
    stats = transform.stats()
    assert not stats.programs_interpreted and not stats.passes_repeated and not stats.programs_refused
    # Of what Dynamo looks at it makes a graph for each number, or for each side of a comparison.
    assert stats.programs_filled == {cuts: 3, compares: 2}[program]


class Rotary(torch.nn.Module):
    """Two layers with a table that is cut to the length, of which Dynamo makes an argument that is a number.

    Where it has symbols from the first call on, numbers with a point are arguments too, as tensors.
    """

    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.randn(300, WIDTH))
        self.layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.limit, self.scale, self.eps = 250, 0.3, 1e-5

    def forward(self, x):
        length = x.shape[1]
        table = self.table[:length]
        for layer in self.layers:
            x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * (self.scale * self.scale)
            x = torch.tanh(layer(x) * table) + torch.arange(length)[:, None]
        return x * 2 if length > self.limit else x


def train(compiled, model, x):
    model.zero_grad()
    result = compiled(x)
    result.square().mean().backward()
    return [result, *(each.grad.clone() for each in model.parameters())]


@pytest.mark.usefixtures("eager_regions")
@pytest.mark.parametrize("dynamic", [None, True])
def test_behind_dynamo_a_further_length_is_filled_in(tmp_path, dynamic):
    torch.manual_seed(0)
    model = Rotary()
    compiled, transform = compile_behind_dynamo(model, store=tmp_path, dynamic=dynamic)
    filled, derived = 0, (1, 64, 96) if dynamic is None else (1, 64)
    for length in (64, 96, 65, 1, 249):  # the graph that is made of 1 changes nothing for the others
        x = torch.randn(2, length, WIDTH)
        before = transform.stats().compiles
        found = train(compiled, model, x)
        for one, other in zip(found, train(model, model, x), strict=True):
            torch.testing.assert_close(one, other)
        stats = transform.stats()
        filled += length not in derived
        assert stats.programs_filled == filled
        assert not stats.programs_interpreted
        assert length in (1, 64, 96) or stats.compiles == before
    x = torch.randn(2, 260, WIDTH)  # on the other side of what Dynamo's guards see
    for one, other in zip(train(compiled, model, x), train(model, model, x), strict=True):
        torch.testing.assert_close(one, other)
    assert transform.stats().programs_filled == stats.programs_filled
