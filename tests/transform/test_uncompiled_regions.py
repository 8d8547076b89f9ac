"""Regions that a compiler rejects, and numbers of odd types: results are Thunder's without regions."""

import copy
from enum import IntEnum, StrEnum
from unittest.mock import Mock

import pytest
import thunder
import torch
from loaded_programs import load, no_interpretation, run, write
from models import Blocks, are_same, compile_with, find_all_fused, step, take_token_step
from recorded_requests import Recorder
from store_contents import collect_warnings
from store_processes import PersistentEager

import fusioncache
from fusioncache.backends.eager import Eager
from fusioncache.backends.nvfuser.backend import NvFuser
from fusioncache.ir import Declined, Scope
from fusioncache.process.warning import warn_once
from fusioncache.transform import executor

X = torch.linspace(-2, 3, 12).reshape(3, 4)


class Compiled(list):
    """Replaces TorchInductor: records what it compiles, and raises ``error`` if there is one."""

    error: Exception | None = TypeError("Dynamo takes no such number\nand more")

    def __call__(self, function):
        self.append(function)

        def call(*args):
            if self.error:
                raise self.error
            return function(*args)

        return call


@pytest.fixture
def compiler(monkeypatch):
    """Replaces TorchInductor where our executor compiles a region without a template."""
    warn_once.cache_clear()
    compiled = Compiled()
    monkeypatch.setattr(executor, "has_transform", lambda: True)  # other tests cover the warning of a missing transform
    monkeypatch.setattr(executor, "inductor_function", compiled)
    monkeypatch.setattr(executor, "best_backend", lambda device: "inductor")
    return compiled


def two_regions(x):
    return torch.tanh(torch.sin(x) * 2 @ torch.cos(x).t()) + 1


def test_without_the_transform_a_region_is_compiled_once_and_then_runs_operation_by_operation(compiler):
    compiled = thunder.jit(two_regions, executors=["fusioncache"])
    with collect_warnings() as messages:
        results = [compiled(X) for _ in range(3)]
    assert all(torch.equal(result, thunder.jit(two_regions)(X)) for result in results)
    assert len(compiler) == len(find_all_fused(compiled)) == 2
    assert messages == [
        "fusioncache: a region could not be compiled and runs operation by operation: "
        "TypeError: Dynamo takes no such number"
    ]


def test_what_the_operations_raise_as_well_is_raised_each_time(compiler):
    compiled = thunder.jit(lambda x, y: torch.remainder(x + 1, y + 0), executors=["fusioncache"])
    x, zero = torch.tensor([3, 4]), torch.tensor([0, 0])
    with collect_warnings() as messages:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="ZeroDivision"):
                compiled(x, zero)
        assert not messages
        assert compiled(x, x).tolist() == [1, 1] and len(compiler) == 3


def test_out_of_memory_is_not_hidden(compiler):
    compiler.error = torch.OutOfMemoryError("full")
    with pytest.raises(torch.OutOfMemoryError):
        thunder.jit(two_regions, executors=["fusioncache"])(X)


@pytest.mark.parametrize("loaded", [False, True])
def test_what_takes_a_templates_place_compiles_nothing(compiler, monkeypatch, loaded):
    """Dynamo, which rejected a region for its template, does not get the same region again."""
    torch.manual_seed(0)
    model, x = Blocks(2), torch.randn(3, 16)
    compiled, transform = compile_with(copy.deepcopy(model))
    expected = run(compiled, thunder.compile_data(compiled).fn, x)
    monkeypatch.setattr(Eager, "compile", Mock(side_effect=RuntimeError("no luck")))
    again = load(model, write(compiled, transform)) if loaded else compile_with(model)[0]
    with collect_warnings() as messages, no_interpretation() if loaded else pytest.MonkeyPatch.context():
        assert are_same(run(again, model, x), expected)
    assert len(messages) == 1 and "operation by operation: no luck" in messages[0]
    assert not compiler


class Real(float):
    """A number of a user's class, which answers differently when Python asks for its value."""

    def __float__(self):
        return 7.0


class Whole(int):
    def __int__(self):
        return 7

    __index__ = __int__


Complex, Text = type("Complex", (complex,), {}), type("Text", (str,), {})
Member, Name = IntEnum("Member", {"TWO": 2}), StrEnum("Name", {"A": "a"})


class Scaled(torch.nn.Module):
    def __init__(self, number, name):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.number, self.name = number, name

    def forward(self, x):
        hidden = torch.sin(self.linear(x) * self.number) + self.number
        return hidden * 2 if self.name == "a" else hidden


VALUES = [(Real(2.0), "a"), (Real("nan"), Text("a")), (Whole(2), Text("a")), (Member.TWO, Name.A), (Complex(1j), "a")]


@pytest.mark.parametrize("early", [False, True])
def test_numbers_of_derived_classes_are_what_torch_reads_in_them(early):
    """At the first call, and where prologues are rewritten: a value of another class makes a new program."""
    for number, name in VALUES:
        torch.manual_seed(0)
        model = Scaled(number if early else 2.0, name if early else "b")
        compiled, transform = compile_with(model)
        for _ in range(4):
            compiled(X)
        model.number, model.name = number, name
        expected = thunder.jit(copy.deepcopy(model))(X)
        for _ in range(2):
            torch.testing.assert_close(compiled(X), expected, rtol=0, atol=0, equal_nan=True)
        assert transform.stats().regions and not transform.stats().bypasses


PROGRAMS = {
    "a product": lambda m, x: m * 200,
    "a mask": lambda m, x: torch.tanh(x) + (~m) * -10000,
    "chosen": lambda m, x: torch.where(m, m * 300, 5) * x,
    "of two": lambda m, x: (m * 7 + (~m) * 400) * x.abs(),
}


CASES = [*((name, "eager") for name in PROGRAMS), ("of two", "inductor")]


@pytest.mark.parametrize(("name", "backend"), CASES)
def test_bits_and_integers_give_what_torch_gives(name, backend):
    def program(ids, x):
        return PROGRAMS[name](ids != 0, x), torch.sin(x) * 2

    compiled, results, gradients = compile_with(program, backend)[0], [], []
    for function in (compiled, program):
        x = torch.linspace(-1, 1, 4).requires_grad_()
        results.append(function(torch.arange(4), x))
        sum(result.sum() for result in results[-1] if result.requires_grad).backward()
        gradients.append(x.grad)
    torch.testing.assert_close(*results)
    torch.testing.assert_close(*gradients)
    assert find_all_fused(compiled)


MESSAGE = """ INTERNAL ASSERT FAILED at fusion_kernel_runtime.cpp:476, please report a bug
Error from segmentation group 1: Expected last_alloc_dim == vec_alloc_id . Vectorized dim is no innermost one. tv: T81
Exception raised from validate"""
ERRORS = {"compile": MESSAGE, "once": "CUDA error: out of resources"}


class Picky(PersistentEager):
    """Rejects regions with an erf and a sin, as nvFuser would; or they do not launch, or fail once."""

    compiles = derives_sizes = True

    def __init__(self, fails="compile"):
        super().__init__()
        self.fails = fails
        self.rejected = 0

    def compile(self, graph, args):
        picked = {"prims.sin", "prims.erf"} <= {op.name for op in graph.ops}
        self.rejected += picked
        if picked and self.fails in ERRORS:
            raise RuntimeError(ERRORS[self.fails])
        if picked and self.fails == "launch":
            return Mock(side_effect=RuntimeError("too many resources requested for launch\nand more"))
        return super().compile(graph, args)

    def persist_size(self, as_general, region, args):
        try:
            return self.persist(region, args)
        except RuntimeError as error:
            raise Declined("nor does it compile for any sizes", Scope.GENERAL) from error

    find_rejection = NvFuser.find_rejection


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        h = torch.sin(self.linear(x))
        for scale in (0.5, 1.5, 2.5, 3.5):
            h = torch.tanh(h * scale) + x
        return torch.erf(h) * 2


def train(backend, store, monkeypatch, inputs=(X, X), helpers=None):
    """Returns results, counts and warnings of steps of a process; asserts that results are eager PyTorch's."""
    monkeypatch.setattr("fusioncache.transform.executor.best_backend", lambda device: "eager")
    monkeypatch.setattr("fusioncache.transform.shared_region.make_backend", lambda name, **_: backend)
    monkeypatch.setattr("fusioncache.accelerators.precompile.ahead.find_helpers", lambda *args, **_: helpers)
    model = Model()
    cache = fusioncache.Cache(store=store, record=False)
    cache.helpers = helpers
    compiled, transform = compile_with(model, "auto", cache, programs=False, jobs=0)
    with collect_warnings() as messages:
        found = [step(compiled, model, x) for x in inputs]
    torch.testing.assert_close(found, [step(model, model, x) for x in inputs])
    return found, transform.stats(), [each for each in messages if "rejected" in each]


@pytest.mark.parametrize("fails", ["compile", "launch"])
def test_a_rejected_region_runs_in_pieces_and_the_next_process_knows_it(tmp_path, monkeypatch, fails):
    first = Picky(fails)
    found, stats, messages = train(first, tmp_path, monkeypatch)
    (reason,) = stats.bypasses
    assert reason.startswith("rejected by torch: runs in ") and first.rejected == 1
    (message,) = messages
    assert "test_uncompiled_regions.py" in message
    assert ("Vectorized dim is no innermost one." in message) == (fails == "compile") and "tv:" not in message
    second = Picky(fails)
    again, stats, _ = train(second, tmp_path, monkeypatch)
    assert all(map(are_same, again, found))
    assert (second.rejected, second.compiled, stats.compiles) == (0, [], 0)
    assert dict(stats.bypasses) == {reason: 1}


INPUTS = [torch.linspace(-1, 1, 4 * length).reshape(length, 4) for length in (3, 5, 7, 9)]


def test_pieces_of_a_rejected_region_are_handed_over_at_further_lengths(tmp_path, monkeypatch):
    unforeseen = []
    for lengths in (slice(1), slice(3), slice(3, 4)):
        backend, recorder = Picky(), Recorder()
        train(backend, tmp_path, monkeypatch, INPUTS[lengths], recorder)
        unforeseen.append(len(recorder.wanted - recorder.handed.keys()))
        assert backend.rejected == (lengths == slice(1))
    # The backward region of each length, whose gradient is expanded; at the very first length also both pieces.
    assert unforeseen == [1 + 2, 3, 1]


def test_pieces_of_a_rejected_region_get_code_that_is_made_of_code_for_any_sizes(tmp_path, monkeypatch):
    for rejected, expected in ((1, (8, 0, 4, 8)), (0, (0, 16, 0, 12))):
        backend = Picky()
        _, stats, _ = train(backend, tmp_path, monkeypatch, INPUTS)
        assert (stats.compiles, stats.loads, stats.generalizations, stats.general_hits) == expected
        assert list(stats.bypasses.values()) == [len(INPUTS)] and backend.rejected == rejected


@pytest.mark.parametrize(("fails", "pieces"), [("compile", 1), ("launch", 0)])
def test_a_launch_that_failed_says_nothing_of_other_sizes(tmp_path, monkeypatch, fails, pieces):
    for backend, inputs, expected in ((fails, 0, 1), ("never", 0, 1), ("never", 1, pieces)):
        picky = Picky(backend)
        _, stats, _ = train(picky, tmp_path, monkeypatch, INPUTS[inputs : inputs + 1])
        assert sum(stats.bypasses.values()) == expected
    assert picky.rejected == 1 - pieces


class Newer(Picky):
    """The same backend in another version."""

    def environment(self):
        return {**super().environment(), "versions": "another"}


@pytest.mark.parametrize(
    ("make", "sizes", "is_known"), [(Picky, "auto", True), (Picky, "static", False), (Newer, "auto", False)]
)
def test_a_rejection_is_for_one_version_and_for_shared_sizes(tmp_path, monkeypatch, make, sizes, is_known):
    train(Picky(), tmp_path, monkeypatch, INPUTS[:1])
    monkeypatch.setenv("FUSIONCACHE_SIZES", sizes)
    backend = make("never")
    _, stats, _ = train(backend, tmp_path, monkeypatch, INPUTS[1:2])
    assert (backend.rejected, len(stats.bypasses)) == ((0, 1) if is_known else (1, 0))


def test_an_error_that_may_pass_is_not_remembered(tmp_path, monkeypatch):
    _, stats, messages = train(Picky("once"), tmp_path, monkeypatch)
    assert dict(stats.bypasses) == {"compile failed: RuntimeError": 1} and not messages
    second = Picky("never")
    _, stats, _ = train(second, tmp_path, monkeypatch)
    assert second.rejected == stats.compiles == 1 and not stats.bypasses


@pytest.mark.gpu
@pytest.mark.usefixtures("eager_regions")
def test_a_model_that_thunder_alone_cannot_train(tmp_path):
    from benchmarks.zoo.token_models import VOCABULARY, Convolutional

    tokens = torch.randint(0, VOCABULARY, (2, 64), generator=torch.Generator().manual_seed(0)).cuda()

    def process():
        torch.manual_seed(1)
        model = Convolutional().cuda().to(torch.bfloat16)
        cache = fusioncache.Cache(store=tmp_path, record=False)
        transform = fusioncache.FusionCache(cache=cache, programs=False, jobs=0)
        call = thunder.jit(model, transforms=[transform])
        found = [take_token_step(call, model, tokens) for _ in range(3)]
        return found, transform.stats(), take_token_step(model, model, tokens)

    found, stats, eager = process()
    (reason,) = stats.bypasses
    assert reason.startswith("rejected by nvFuser: runs in ")
    torch.testing.assert_close(found[0], eager, rtol=0.1, atol=0.02)
    again, later, _ = process()
    assert later.compiles == 0 and dict(later.bypasses) == dict(stats.bypasses)
    assert all(map(are_same, again, found))
