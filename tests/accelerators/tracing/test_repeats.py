"""Passes that record guards of sizes run on programs with few of many equal blocks, and have the same guards."""

import math
from dataclasses import fields
from itertools import chain

import pytest
import thunder
import thunder.torch as ltorch
import torch
from blank_programs import blank
from models import Blocks
from recorded_requests import Recorder
from same_traces import stop_at_first
from store_processes import PersistentEager
from stored_programs import compile_anew
from thunder.core.proxies import TensorProxy
from thunder.extend import OperatorExecutor, register_executor
from torch import nn

import fusioncache
from fusioncache.accelerators.precompile import ahead
from fusioncache.accelerators.programs.build import write_program
from fusioncache.accelerators.programs.template_loader import find_references
from fusioncache.accelerators.sizes import lengths, passes, repeats
from fusioncache.store import Store
from fusioncache.transform import shared_region

WIDTH = 4
FEWEST, COUNT = 6, 8


@pytest.fixture(autouse=True)
def _take_few(monkeypatch):
    monkeypatch.setattr(passes, "FEWEST", FEWEST)


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
    found = repeats.shorten(trace(Model()), count, FEWEST)
    model = Model(lambda blocks: blocks.__delitem__(slice(count, None)))
    expected = trace(model).bound_symbols
    used = {each.name for symbol in found.bound_symbols[COUNT * 2 + 1 :] for each in symbol.flat_proxy_args}
    assert {"t_blocks_0_linear_weight", f"t_blocks_{COUNT - 1}_linear_bias"} <= used
    assert f"t_blocks_{count - 1}_linear_weight" not in used
    kinds = [each.sym.name for each in found.bound_symbols if each.sym.name != "unpack_trivial"]
    assert kinds == [each.sym.name for each in expected if each.sym.name != "unpack_trivial"]


def test_all_but_one_block_may_be_left():
    whole = trace(Model(lambda blocks: blocks.__delitem__(slice(FEWEST, None))))
    found = repeats.shorten(whole, FEWEST - 1, FEWEST)
    used = {each.name for symbol in found.bound_symbols for each in symbol.flat_proxy_args}
    assert {symbol.output.name for symbol in found.bound_symbols if symbol.sym.name in ("tanh", "add")} <= used


def test_a_part_that_repeats_few_larger_blocks_hides_no_other():
    def finish(results, _):
        x = results[-1]
        for number in range((FEWEST - 1) * 16):
            x = x * (number % 16)
        return x

    found = repeats.shorten(trace(Model(finish=finish)), 3, FEWEST)
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
    assert repeats.shorten(whole, 3, FEWEST) is whole


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
                patch.setattr(passes, "shorten", lambda whole, *_: whole)
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
    assert few == whole and few.looks and runs == [3, 4, COUNT]


@pytest.mark.parametrize("rounds", [1, 2])
def test_shapes_in_comments_have_the_names_of_the_whole_program(recorded, rounds):
    model = Model(lambda blocks: [setattr(block, "rounds", rounds) for block in blocks]).requires_grad_(False)
    (few, whole), runs = recorded(model)
    assert few == whole and len(few.shapes) == rounds * COUNT
    assert runs == [3, 4, COUNT]


def test_a_result_that_has_several_shapes_needs_all_blocks(recorded):
    """The second shape has expressions that are known without it."""

    def finish(results, blocks):
        return results[-1].sum() + torch.sigmoid(results[-1].reshape(-1, 2)).sum()

    model = Model(lambda blocks: [setattr(block, "rounds", 1) for block in blocks], finish).requires_grad_(False)
    (few, whole), runs = recorded(model)
    assert few == whole and len(few.shapes) == COUNT and runs == [3, 4, COUNT, COUNT]


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


def test_a_deep_copy_shares_nothing_that_passes_write_into():
    def list_all(symbols):
        for symbol in symbols:
            yield from (symbol, symbol.tags, *symbol.flat_proxy_args, *(each.tags for each in symbol.flat_proxy_args))
            yield from list_all(symbol.subsymbols)

    whole = trace(Model())
    copied = repeats.copy_deeply(whole)
    assert str(copied) == str(whole) and copied.names == whole.names is not copied.names
    assert not {*map(id, list_all(copied.bound_symbols))} & {*map(id, list_all(whole.bound_symbols))}


class Writing(nn.Module):
    """A model whose blocks write in place."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(COUNT))

    def forward(self, x):
        for block in self.blocks:
            x = torch.tanh(block(x))
            x.mul_(2.0)
            x = torch.sin(x) * 1.5
        return x


class Spanning(nn.Module):
    """A model with regions that span all blocks, so that a preview finds others."""

    def forward(self, x):
        for _ in range(COUNT):
            x = torch.sin(x) * 1.5 + x.mean(-1, keepdim=True)
        return x


@pytest.mark.parametrize(
    ("make", "dtype", "processes"),
    [
        (lambda: Blocks(COUNT), torch.bfloat16, [(4, 6)]),  # recomputes weights in backward
        (lambda: Blocks(COUNT), torch.float32, [(4,), (6,)]),  # the second one generalizes with regions of the store
        (Writing, torch.float32, [(4,)]),
        (Spanning, torch.float32, [(4, 6)]),
    ],
)
def test_a_preview_requests_what_the_program_does_and_changes_nothing(tmp_path, monkeypatch, make, dtype, processes):
    found, requests = [], []
    monkeypatch.setattr(shared_region, "make_backend", lambda *_, **options: PersistentEager())
    monkeypatch.setattr(PersistentEager, "derives_sizes", True)
    monkeypatch.setattr(Recorder, "works_beside", True)
    monkeypatch.setattr(ahead, "find_helpers", lambda *_, **options: Recorder())
    monkeypatch.setattr(Recorder, "hand_over", lambda _, asks: requests[-1].append({ask.key for ask in asks}) or 0)
    for fewest in (FEWEST, COUNT + 1):
        monkeypatch.setattr(passes, "FEWEST_PREVIEWED", fewest)
        store, seen = tmp_path / str(fewest), []
        requests.append([])
        for lengths_of_process in processes:
            torch.manual_seed(0)
            model = make().to(dtype)
            compiled, transform = compile_anew(model, store)
            for length in lengths_of_process:
                compiled(torch.randn(length, 16, dtype=dtype, requires_grad=True)).sum().backward()
            entries = thunder.compile_stats(compiled).interpreter_cache
            texts = [blank(write_program(each, model, find_references(transform.calls()))) for each in entries]
            stats = transform.stats()
            counts = {each.name: getattr(stats, each.name) for each in fields(stats) if "seconds" not in each.name}
            seen.append((texts, counts))
        found.append((seen, {(each.digest, each.backend) for each in Store.open(store, remote="").entries()}))
    assert found[0] == found[1]
    previewed, expected = map(iter, requests)
    for length in chain(*processes):
        is_first = any(length == each[0] for each in processes)  # passes with symbols follow for the other one
        pair = [next(expected), next(expected)]
        if is_first:
            assert ([next(previewed), next(previewed)] == pair) is (make is not Spanning)
        assert [next(previewed), next(previewed)] == pair and any(pair)
    assert not [*previewed, *expected]
