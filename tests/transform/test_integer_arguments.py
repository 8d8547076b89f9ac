"""Integers among the arguments, as Dynamo hands lengths over: sizes as others are, and looked at as others are."""

import math

import pytest
import thunder
import torch
from behind_dynamo import compile_behind_dynamo
from first_traces import replay_as, trace_first, watch
from stored_programs import compile_anew, without_interpreter

from fusioncache.ir.errors import Declined

WIDTH = 12
TABLE = torch.randn(64, WIDTH)
BY_NUMBER = {6: 1.0, 9: 2.0}


def cuts(x, number):
    """What Dynamo makes of a rotary table that is cut to the length."""
    return x * TABLE[:number].view(1, number, WIDTH)


def makes(x, number):
    return x + torch.arange(number)[:, None] + torch.ones(number, WIDTH).sum(0)


def computes(x, number):
    return x.reshape(x.shape[0] * number, -1).view(x.shape[0], number, WIDTH) * (2 * number - number // 2)


def gathers(x, *numbers, **named):
    return x[:, : min(numbers[0], 50)] + x.new_zeros(numbers[0], named.get("width", WIDTH))


def compares(x, number):
    return x * 2 if number > 7 else x + 1


def repeats(x, number):
    for each in range(number):
        x = x + each
    return x


def formats(x, number):
    return x * len(f"{number:04}{'x' * (number % 3)}")


def looks_up(x, number):
    return x * BY_NUMBER.get(number, 3.0)


def divides(x, number):
    return x / math.sqrt(number) + 1 / number


def returns_it(x, number):
    return x + 1, {"number": number, "all": [number, (number,)]}


def is_told_its_kind(x, number):
    return x * (2 if isinstance(number, int) and type(number) is int and not isinstance(number, bool) else 3)


def closes_over_it(x, number):
    def inner(y):
        return y[:, :number]

    return torch.cat([inner(each) for each in (x, x + 1)], 1)


def has_a_default(x, number=4):
    return x.sum(1, keepdim=True).expand(x.shape[0], number, WIDTH)


MOVING = (cuts, makes, computes, gathers, is_told_its_kind, closes_over_it, has_a_default)
LOOKING = (compares, repeats, formats, looks_up, divides, returns_it)


def tensors(number, rows=2):
    generator = torch.Generator().manual_seed(number)
    return torch.randn(rows, number, WIDTH, generator=generator, requires_grad=True)


def run(compiled, *args, **kwargs):
    result = compiled(*args, **kwargs)
    tensor = result[0] if isinstance(result, tuple) else result
    (gradient,) = torch.autograd.grad(tensor.sum(), args[0])
    return result, gradient


def assert_same(found, expected):
    (one, gradient), (other, wanted) = found, expected
    if isinstance(one, tuple):
        assert one[1] == other[1]
        assert [type(each) for each in one[1]["all"]] == [int, tuple]
        one, other = one[0], other[0]
    assert torch.equal(one, other)
    assert torch.equal(gradient, wanted)


@pytest.mark.parametrize("program", [*MOVING, *LOOKING], ids=lambda each: each.__name__)
def test_each_number_has_thunders_bits(program, tmp_path):
    own, _ = compile_anew(program, tmp_path / "own", programs=False, sizes="static")
    compiled, transform = compile_anew(program, tmp_path)
    for number in (6, 9, 5, 20):
        x = tensors(number)
        assert_same(run(compiled, x, number), run(own, x, number))
    stats = transform.stats()
    known = stats.programs_filled + stats.programs_replayed
    assert known in (1, 2) if program in MOVING else known < 2
    if program in LOOKING:
        reasons = " ".join((*stats.programs_interpreted, *stats.passes_repeated))
        assert "test_integer_arguments" in reasons or "returns it" in reasons
    assert not any("failed" in reason for reason in (*stats.programs_interpreted, *stats.passes_repeated))


def test_a_number_that_differs_from_the_length(tmp_path):
    """Both were the same so far: each place has its own, or the program is made anew."""
    own, _ = compile_anew(has_a_default, tmp_path / "own", programs=False, sizes="static")
    for keyword in (False, True):
        compiled, transform = compile_anew(has_a_default, tmp_path / str(keyword))
        for number, length in ((6, 6), (9, 9), (5, 5), (7, 9), (6, 30)):
            x = tensors(length)
            given = ((x,), {"number": number}) if keyword else ((x, number), {})
            assert_same(run(compiled, *given[0], **given[1]), run(own, *given[0], **given[1]))
        assert transform.stats().programs_filled >= 1


def test_a_number_alone_may_vary(tmp_path):
    compiled, _ = compile_anew(has_a_default, tmp_path)
    x = tensors(4)
    for number in (6, 9, 5, 40):
        assert compiled(x, number).shape == (2, number, WIDTH)
    with without_interpreter():
        assert compiled(x, 41).shape == (2, 41, WIDTH)
    assert compiled(x).shape == (2, 4, WIDTH)


def test_what_is_no_integer_above_1_is_interpreted(tmp_path):
    def program(x, number):
        return x * 2 if number is None or isinstance(number, str) else x * number

    compiled, transform = compile_anew(program, tmp_path)
    x = tensors(4)
    for number in (6, 9, 5):
        compiled(x, number)
    before = transform.stats().programs_filled + transform.stats().programs_replayed
    own = thunder.jit(program)
    for other in (-1, 0, 1, True, False, 2.0, 7.5, None, "7", torch.tensor(7)):
        assert torch.equal(compiled(x, other), own(x, other)), other
        assert compiled(x, other).dtype == own(x, other).dtype, other
        assert transform.stats().programs_filled + transform.stats().programs_replayed == before, other


@pytest.mark.parametrize("program", MOVING, ids=lambda each: each.__name__)
def test_the_operations_called_again_are_thunders_to_the_letter(program):
    journal = watch(program, tensors(6).detach(), 6)
    assert journal.refusals == []
    for number in (9, 5, 33):
        x = tensors(number).detach()
        assert replay_as(program, journal, x, number) == trace_first(program, x, number)
    assert isinstance(replay_as(program, journal, tensors(9).detach(), 1), Declined)


@pytest.mark.usefixtures("eager_regions")
@pytest.mark.parametrize("program", [cuts, compares, repeats, returns_it], ids=lambda each: each.__name__)
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
    assert stats.programs_filled == {cuts: 3, compares: 2, repeats: 0, returns_it: 3}[program]


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
    for length in (64, 96, 65, 200, 1, 8, 249):  # the graph that is made of 1 changes nothing for the others
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
