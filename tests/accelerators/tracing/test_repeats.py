"""Passes that record guards of sizes run on programs with few of many equal blocks, and have the same guards."""

import math

import pytest
import thunder
import thunder.torch as ltorch
import torch
from same_traces import stop_at_first
from stored_programs import compile_anew
from thunder.core.proxies import TensorProxy
from thunder.extend import OperatorExecutor, register_executor
from torch import nn

import fusioncache
from fusioncache.accelerators.sizes import lengths, passes, repeats

WIDTH = 4
FEWEST, COUNT = 6, 8


@pytest.fixture(autouse=True)
def _take_few(monkeypatch):
    monkeypatch.setattr(repeats, "FEWEST", FEWEST)


def round_up(a):
    shape = (*a.shape[:1], math.ceil(a.shape[1] / 4) * 4)
    return TensorProxy(like=a), TensorProxy(like=a, shape=shape)


class Rounding(OperatorExecutor):
    def cache_key(self):
        return "none"


EXECUTOR = register_executor(Rounding("rounds", version="1"))
ROUND_UP = EXECUTOR.register_operator(
    "round_up", meta=round_up, fn=lambda a: (a * 2, a.new_zeros(len(a), -(-a.shape[1] // 4) * 4))
)
EXECUTOR.register_implementation(ltorch.sigmoid, execution_transform=lambda a: ROUND_UP(a)[0])


class Block(nn.Module):
    def __init__(self, number):
        super().__init__()
        self.linear, self.factor, self.source, self.rounds = nn.Linear(WIDTH, WIDTH), 2.0, -1, 0

    def forward(self, x, table):
        for _ in range(self.rounds):
            x = torch.sigmoid(x)
        return x + torch.tanh(self.linear(x.view(-1, WIDTH)) * self.factor).view(x.shape) * table

    def share(self, other):
        self.linear = other.linear


class Model(nn.Module):
    def __init__(self, change=lambda blocks: None, finish=lambda results, blocks: results[-1]):
        super().__init__()
        self.blocks = nn.ModuleList(map(Block, range(COUNT)))
        self.finish = finish
        change(self.blocks)

    def forward(self, x):
        table, results = torch.sin(x).sum(1, keepdim=True), [x]
        for block in self.blocks:
            results.append(block(results[block.source], table))
        return self.finish(results, self.blocks)


def trace(model):
    """Returns Thunder's first trace of a model."""
    return stop_at_first(lambda own, *given: own(*given).computation_trace, model, torch.ones(2, 3, WIDTH))


@pytest.mark.parametrize("count", [2, 3, 5])
def test_a_shortened_trace_computes_what_a_model_with_fewer_blocks_does(count):
    found = repeats.shorten(trace(Model()), count)
    model = Model(lambda blocks: blocks.__delitem__(slice(count, None)))
    expected = trace(model).bound_symbols
    used = {each.name for symbol in found.bound_symbols[COUNT * 2 + 1 :] for each in symbol.flat_proxy_args}
    assert {"t_blocks_0_linear_weight", f"t_blocks_{COUNT - 1}_linear_bias"} <= used
    assert f"t_blocks_{count - 1}_linear_weight" not in used
    kinds = [each.sym.name for each in found.bound_symbols if each.sym.name != "unpack_trivial"]
    assert kinds == [each.sym.name for each in expected if each.sym.name != "unpack_trivial"]


def test_all_but_one_block_may_be_left():
    found = repeats.shorten(trace(Model(lambda blocks: blocks.__delitem__(slice(FEWEST, None)))), FEWEST - 1)
    used = {each.name for symbol in found.bound_symbols for each in symbol.flat_proxy_args}
    assert {symbol.output.name for symbol in found.bound_symbols if symbol.sym.name in ("tanh", "add")} <= used


def test_a_part_that_repeats_few_larger_blocks_hides_no_other():
    def finish(results, _):
        x = results[-1]
        for number in range((FEWEST - 1) * 16):
            x = x * (number % 16)
        return x

    found = repeats.shorten(trace(Model(finish=finish)), 3)
    assert sum(each.sym.name == "tanh" for each in found.bound_symbols) == 3


MIDDLE = COUNT // 2


@pytest.mark.parametrize(
    "model",
    [
        Model(lambda blocks: setattr(blocks[MIDDLE], "factor", 3.0)),
        Model(lambda blocks: setattr(blocks[MIDDLE], "linear", nn.Linear(WIDTH, WIDTH, bias=False))),
        Model(lambda blocks: blocks[MIDDLE].linear.weight.requires_grad_(False)),
        Model(lambda blocks: blocks[MIDDLE].share(blocks[MIDDLE - 2])),
        Model(lambda blocks: blocks[MIDDLE].share(blocks[0])),
        Model(lambda blocks: setattr(blocks[MIDDLE], "source", MIDDLE - 2)),
        Model(lambda blocks: setattr(blocks[MIDDLE], "source", 0)),
        Model(finish=lambda results, blocks: torch.stack(results).sum(0)),
        Model(lambda blocks: blocks.__delitem__(slice(FEWEST - 1, None))),
        Model(finish=lambda results, blocks: results[-1] * results[MIDDLE]),
        Model(finish=lambda results, blocks: results[-1] @ blocks[MIDDLE].linear.weight),
    ],
)
def test_blocks_that_differ_are_used_elsewhere_or_are_few_stay(model):
    whole = trace(model)
    assert repeats.shorten(whole, 3) is whole


@pytest.fixture(name="recorded")
def _recorded(tmp_path, monkeypatch):
    """Returns a function for the journals of a model's passes, and the number of blocks in each of their runs."""

    def record(model):
        found, runs, own, apply = [], [], passes.record_pass_guards, passes.apply_passes

        def count(whole, compiled):
            runs.append(sum(each.sym.name == "tanh" for each in whole.bound_symbols))
            return apply(whole, compiled)

        def record_both(*args):
            found.append(own(*args))
            with monkeypatch.context() as patch:
                patch.setattr(passes, "shorten", lambda whole, count: whole)
                found.append(own(*args))
            return found[0]

        monkeypatch.setattr(passes, "apply_passes", count)
        monkeypatch.setattr(lengths, "record_pass_guards", record_both)
        compiled, transform = compile_anew(model, tmp_path, jit={"executors": [EXECUTOR, *fusioncache.executors()]})
        for length in (3, 5, 6):
            result = compiled(torch.randn(2, length, WIDTH)).sum()
            if result.requires_grad:
                result.backward()
        assert not transform.stats().passes_repeated
        return found, runs

    return record


def test_few_blocks_have_the_guards_of_all(recorded):
    (few, whole), runs = recorded(Model())
    assert few == whole and few.guards and runs == [3, 4, COUNT]


@pytest.mark.parametrize("rounds", [1, 2])
def test_sizes_that_are_in_comments_only_need_no_expression(recorded, rounds):
    model = Model(lambda blocks: [setattr(block, "rounds", rounds) for block in blocks]).requires_grad_(False)
    (few, whole), runs = recorded(model)
    assert few == whole and few.in_comments and runs == [3, 4, COUNT]


@pytest.mark.parametrize("fails", [False, True])
def test_passes_that_depend_on_the_number_of_blocks_run_on_all(recorded, monkeypatch, fails):
    apply = passes.apply_passes

    def look_at_blocks(whole, compiled):
        size = next(each for each in whole.args if each.name == "x").shape[1]
        count = sum(each.sym.name == "tanh" for each in whole.bound_symbols)
        assert size * count > 0
        assert not (fails and count == 4)
        return apply(whole, compiled)

    monkeypatch.setattr(passes, "apply_passes", look_at_blocks)
    (few, whole), runs = recorded(Model())
    assert few == whole and runs == [3, 4, COUNT, COUNT]


def test_passes_with_symbols_see_what_writes_in_place_change(tmp_path, monkeypatch):
    def write(x):
        x = torch.tanh(x)
        x.mul_(2.0)
        return torch.sin(x) * 1.5

    found, own = [], passes.apply_passes
    monkeypatch.setattr(passes, "apply_passes", lambda *args: found.append(own(*args)) or found[-1])
    compiled, _ = compile_anew(write, tmp_path)
    for length in (4, 6):
        compiled(torch.randn(length, 16))
    kinds = [symbol.sym.name for (computation,) in found for symbol in computation.bound_symbols]
    traces = [[symbol.sym.name for symbol in trace.bound_symbols] for trace in thunder.last_traces(compiled)]
    assert kinds.count("update_aliases") == 2
    assert kinds in [[kind for kind in each if kind != "python_del"] for each in traces]
