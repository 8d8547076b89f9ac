"""A second program of Dynamo's graphs with symbols is derived ahead, so that the third length is filled in."""

from itertools import pairwise

import pytest
import thunder
import torch
from behind_dynamo import compile_behind_dynamo

from fusioncache.accelerators.programs import program_list

pytestmark = pytest.mark.usefixtures("eager_regions")

WIDTH = 12
TABLE = torch.randn(64, WIDTH)
WEIGHT = torch.nn.Parameter(torch.randn(WIDTH, WIDTH) / 4)


def rotates(x):
    """The table is cut to the length."""
    return torch.tanh(x @ WEIGHT) * TABLE[: x.shape[1]]


def flattens(x):
    """Rows and lengths, and numbers that are made of both."""
    rows, length = x.shape[:2]
    y = (x.reshape(rows * length, WIDTH) @ WEIGHT).view(rows, length, WIDTH) / (rows + length)
    return y + y.mean(1, keepdim=True) + torch.arange(length)[:, None]


def picks(x):
    """Some of the rows, whose number no argument tells, as an expert does."""
    return torch.tanh(x[x[:, :, 0] > 0] @ WEIGHT) * 2


def make(length, rows=2):
    generator = torch.Generator().manual_seed(length)
    return torch.randn(rows, length, WIDTH, generator=generator, requires_grad=True)


def train(compiled, x):
    """Returns the result and the gradients."""
    result = compiled(x)
    return [result, *torch.autograd.grad(result.square().sum(), [x, WEIGHT])]


def list_functions(compiled):
    """Returns what Thunder compiled, graph by graph."""
    return [each for info in compiled._backend.subgraph_infos for each in info.thunder_compiled_fns]


def count_traces(compiled):
    return sum(thunder.compile_stats(each).cache_misses for each in list_functions(compiled))


def compute(compiled, x):
    return compiled(x.detach())


def run(compiled, model, sizes, call=train):
    """Returns how many programs are derived in each call, and checks what these return."""
    counted = [count_traces(compiled)]
    for each in sizes:
        torch.testing.assert_close(call(compiled, make(*each)), call(model, make(*each)))
        counted.append(count_traces(compiled))
    return [after - before for before, after in pairwise(counted)]


def test_rows_and_lengths_may_both_vary(tmp_path):
    compiled, transform = compile_behind_dynamo(flattens, store=tmp_path, dynamic=True)
    assert run(compiled, flattens, ((24, 2), (36, 3), (25, 2), (7, 7), (9, 4))) == [2, 0, 0, 1, 0]
    # A pass asks whether there are as many rows as the length. It does where the one length is tried as well.
    assert all("args[1][0]" in reason for reason in transform.stats().passes_repeated)
    assert len(transform.stats().passes_repeated) == 2


def test_a_number_of_tokens_that_no_argument_tells(tmp_path):
    """What is computed before and behind the choice are graphs of their own."""
    compiled, transform = compile_behind_dynamo(picks, store=tmp_path)
    traced = run(compiled, picks, ((8,), (13,), (9,), (30,)))
    assert traced[0] and traced[1]
    assert traced[2:] == [0, 0]
    assert not transform.stats().programs_refused


@pytest.fixture(name="called")
def _called(tmp_path):
    """A program that was called with two lengths, and the graph with symbols."""
    compiled, transform = compile_behind_dynamo(rotates, store=tmp_path)
    assert run(compiled, rotates, ((24,), (36,))) == [1, 2]
    return compiled, transform, list_functions(compiled)[-1]


def test_what_thunder_says_of_the_last_call_is_of_that_call(called):
    compiled, transform, graph = called
    stats = thunder.compile_stats(graph)
    assert (stats.calls, stats.cache_misses, stats.cache_hits, len(stats.interpreter_cache)) == (1, 2, 0, 2)
    first, last = stats.interpreter_cache
    for text in map(str, (stats.last_traces[-1], stats.last_backward_traces[-1], stats.last_prologue_traces[-1])):
        assert "36, 12]" in text
    assert stats.last_traces is last.computation_traces
    assert "44, 12]" in str(first.computation_traces[-1])
    # Who calls it then runs it, as any other.
    assert run(compiled, rotates, ((44,),)) == [0]
    assert (stats.cache_hits, transform.stats().programs_filled, transform.stats().programs_made) == (1, 0, 3)


def fail(graph, args):
    raise MemoryError("no room for it")


def make_others(length):
    """Returns what makes arguments of this length."""

    def make_other(graph, args):
        return tuple(
            length if type(each) is int else make(length).detach() if each.shape == (2, 36, WIDTH) else each
            for each in args
        )

    return make_other


@pytest.mark.parametrize(
    ("vary", "reason"),
    [
        (fail, "it is not traced ahead: MemoryError"),
        (make_others(70), "it is not traced ahead: an operation raised RuntimeError"),  # where the table has ended
        (make_others(1), ""),  # which is a program of another form
    ],
    ids=["fails", "is too long", "is one"],
)
def test_where_there_is_none_the_third_length_is_derived(vary, reason, tmp_path, monkeypatch):
    """Also where Thunder would end the process, as an operation raises in a graph."""
    monkeypatch.setattr(program_list, "vary_sizes", vary)
    compiled, transform = compile_behind_dynamo(rotates, store=tmp_path)
    with torch.no_grad():
        assert run(compiled, rotates, ((24,), (36,), (25,), (60,)), compute) == [1, 1, 1, 0]
    (found,) = transform.stats().programs_refused or ("",)
    assert found.startswith(reason)


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


def train_model(compiled, model, x):
    model.zero_grad()
    result = compiled(x)
    result.square().mean().backward()
    return [result, *(each.grad.clone() for each in model.parameters())]


@pytest.mark.parametrize("dynamic", [None, True])
def test_behind_dynamo_a_further_length_is_filled_in(tmp_path, dynamic):
    torch.manual_seed(0)
    model = Rotary()
    compiled, transform = compile_behind_dynamo(model, store=tmp_path, dynamic=dynamic)
    filled, derived = 0, (1, 64, 96) if dynamic is None else (1, 64)
    for length in (64, 96, 65, 1, 249):  # the graph that is made of 1 changes nothing for the others
        x = torch.randn(2, length, WIDTH)
        before = transform.stats().compiles
        found = train_model(compiled, model, x)
        for one, other in zip(found, train_model(model, model, x), strict=True):
            torch.testing.assert_close(one, other)
        stats = transform.stats()
        filled += length not in derived
        assert stats.programs_filled == filled
        assert not stats.programs_interpreted
        assert length in (1, 64, 96) or stats.compiles == before
    x = torch.randn(2, 260, WIDTH)  # on the other side of what Dynamo's guards see
    for one, other in zip(train_model(compiled, model, x), train_model(model, model, x), strict=True):
        torch.testing.assert_close(one, other)
    assert transform.stats().programs_filled == stats.programs_filled
