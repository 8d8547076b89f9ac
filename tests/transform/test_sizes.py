"""Regions that differ only in sizes: compilations and loads for each, in one process and in later ones.

Each result equals torch's, in its layout as well.
"""

import gc
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import Mock

import pytest
import torch
from models import compile_with
from recorded_requests import Recorder
from store_processes import CODE, PersistentEager

import fusioncache
from fusioncache.accelerators.precompile import ahead, entry_compiler
from fusioncache.accelerators.precompile.entry_compiler import CompileTask, EntryCompiler, read_request
from fusioncache.backends.api import Compiled
from fusioncache.backends.eager import Eager
from fusioncache.backends.inductor.backend import Inductor
from fusioncache.backends.torch_settings import apply_torch_settings
from fusioncache.cache.peers import Helpers, Wait
from fusioncache.ir import Declined, Key, Scope
from fusioncache.ir.keys import ANY_SIZES, GENERAL_LAYOUT, SIZES, read_key
from fusioncache.ir.template import layouts_of
from fusioncache.observe.record.stats import Stats
from fusioncache.store import Entry, Store
from fusioncache.store.entry import REFUSED, SIZES_SLOT, is_compiled
from fusioncache.verification.verifier import VerificationError


class Storing(PersistentEager):
    """Stores what TorchInductor would, with its distinctions of layouts, without a compiler."""

    compiles = True

    def layout(self, layouts):
        return Inductor().layout(layouts)

    def general_layout(self, layouts):
        return Inductor().general_layout(layouts)

    def persist_general(self, general, args, values):
        return replace(super().persist_general(general, args, values), artifacts={"code": CODE})

    def load_general(self, artifacts, general, args):
        assert artifacts["code"] == CODE
        return self.persist_general(general, args, general.values[0]).run


@pytest.fixture(autouse=True)
def _backend(eager_regions, monkeypatch):
    monkeypatch.setattr("fusioncache.transform.shared_region.make_backend", lambda name, **_: Storing())


def make(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def scale(x: torch.Tensor) -> torch.Tensor:
    return x * 0.3 + 1.5


def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x + y).tanh() * 2


def multiply(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return ((x.tanh() * 2) @ y).tanh() * 2


class Scale(torch.nn.Module):
    def __init__(self, width: int = 4):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(0.5, 2, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight + 1.5


@torch.no_grad()
def call(compiled: Callable, function: Callable, *inputs: torch.Tensor) -> None:
    result, expected = compiled(*inputs), function(*inputs)
    assert torch.equal(result, expected) and result.stride() == expected.stride()


def run(store: Path | bool, *calls: Sequence[Any], function: Callable = scale, **options: Any) -> Stats:
    """Calls a function with a new cache and transform; returns the counts. A call is tensors, or the shape of one."""
    cache = fusioncache.Cache(store=store, record=False)
    compiled, transform = compile_with(function, cache=cache, **options)
    for each in calls:
        call(compiled, function, *((make(*each),) if isinstance(each[0], int) else each))
    stats = transform.stats()
    assert not stats.bypasses and not stats.unkept
    return stats


def counts(stats: Stats) -> tuple[int, int, int, int]:
    return stats.compiles, stats.loads, stats.generalizations, stats.general_hits


def process(expected: tuple[int, int, int, int], *calls: Sequence[Any], **options: Any) -> tuple:
    """Returns a process: its compiles, loads, generalizations and general hits, its calls and its options."""
    return expected, calls, options


def lay_out(length: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    a, b = make(5, length), make(length, 5).t()
    return [(a, b), (b, a), (a[:, ::2], b[:, ::2]), (a[:1].expand(5, length), a)]


TWO = [process((1, 0, 0, 0), (3, 6)), process((1, 0, 1, 0), (3, 9))]
"""Processes with one length each: the second one generalizes, although it has seen only one length."""
HISTORIES = {
    "nothing is compiled for lengths that no process had": [
        *TWO,
        process((0, 1, 0, 4), (3, 50), (3, 6), (3, 9), (3, 7)),
        # The static code of the first length, and the general code.
        process((0, 2, 0, 3), (3, 6), (3, 50), (3, 9), (3, 7)),
        process((0, 1, 0, 1), (3, 50)),  # a loaded program
    ],
    "1 is never a length": [*TWO, process((1, 0, 0, 0), (1, 9))],
    "a size of 1 or 0 is never general": [process((4, 0, 1, 1), *((3, size) for size in (5, 1, 0, 6, 1, 7, 0)))],
    "where the batch varies as well, code is more general": [
        *TWO,
        process((1, 0, 1, 0), (4, 11)),
        process((0, 1, 0, 2), (5, 13), (3, 21)),
    ],
    "static sizes have none but their own": [
        *TWO,
        process((0, 1, 0, 0), (3, 6), sizes="static"),
        process((1, 0, 0, 0), (3, 9), sizes="static"),
    ],
    "another kind of layout has code of its own": [
        *TWO,
        process((1, 0, 1, 1), *([make(length, 3).t()] for length in (20, 30))),
    ],
    "layouts of one length share code or have their own": [
        process((6, 0, 4, 6), *(each for length in (4, 6, 9) for each in lay_out(length)), function=add)
    ],
    "a loaded program is one more of its function": [TWO[0], process((1, 1, 1, 1), (3, 6), (3, 9), (3, 12))],
    "a function goes on from its own processes": [
        process((1, 0, 0, 0), (3, 4), function=Scale()),
        # A model of another width: one length of it is compiled as it is.
        process((1, 0, 0, 0), (3, 5), function=Scale(5)),
        process((1, 0, 1, 0), (7, 5), function=Scale(5)),
        process((1, 0, 1, 0), (9, 4), function=Scale(), sizes="dynamic"),
    ],
    **{
        f"widths of one program share only if asked to: {sizes}": [
            process((2, 0, shared, 0), (make(4, 6), make(6, 3)), function=multiply, sizes=sizes)
        ]
        for sizes, shared in {"auto": 0, "static": 0, "dynamic": 1}.items()
    },
}


@pytest.mark.parametrize("history", HISTORIES.values(), ids=HISTORIES)
def test_what_processes_compile_and_load_for_sizes(history, tmp_path):
    for expected, calls, options in history:
        assert counts(run(tmp_path, *calls, **options)) == expected, calls


@pytest.fixture
def store(tmp_path) -> Path:
    for _, calls, options in TWO:
        run(tmp_path, *calls, **options)
    return tmp_path


def test_what_code_depends_on_is_in_its_key(store, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Storing, "artifact_environment", lambda self: {"machine": "there"})
        assert counts(run(store, (3, 50))) == (1, 0, 1, 0)
    with apply_torch_settings({"torch.float32_matmul_precision": "high"}):
        assert counts(run(store, (3, 50))) == (1, 0, 0, 0)
    assert counts(run(store, (3, 50))) == (0, 1, 0, 1)


@pytest.mark.parametrize(("word", "expected"), [(SIZES_SLOT, (1, 0, 0, 0)), (GENERAL_LAYOUT, (1, 0, 1, 0))])
def test_what_is_damaged_is_compiled(store, word, expected):
    """The end of each object of the entries in a slot, or with an ingredient, is cut off."""
    damaged, opened = 0, Store.open(store)
    for summary in opened.entries():
        entry = opened.entry(summary.digest, summary.backend)
        for artifact in entry.artifacts if word == entry.backend or word in dict(entry.ingredients) else ():
            path = store / "objects" / artifact.object[:2] / artifact.object
            path.chmod(0o600)
            path.write_bytes(path.read_bytes()[:-1])
            damaged += 1
    assert damaged
    with pytest.warns(RuntimeWarning, match="damaged"):
        assert counts(run(store, (3, 50))) == expected
    assert counts(run(store, (3, 50)))[0] == 0


class Deriving(Storing):
    """Derives code for one size from code for any sizes, as nvFuser does."""

    derives_sizes = True
    generals: ClassVar[list[Any]] = []
    """Code that was compiled for any sizes in a process."""
    refusals: ClassVar[list[Declined]] = []

    def persist_size(self, as_general, region, args):
        if self.refusals:
            raise self.refusals.pop()
        code = as_general.general.graph, self.general_layout(layouts_of(args))
        if code not in self.generals:
            self.generals.append(code)
        run = self.persist_general(as_general.general, args, as_general.values).run(args, as_general.values)
        return Compiled(run, {"code": CODE}, None, alone_seconds=100.0)


@pytest.fixture
def derive(monkeypatch) -> Callable[..., Stats]:
    """Returns ``run`` with a backend that derives code for one size; it checks how much is compiled for any."""
    monkeypatch.setattr("fusioncache.transform.shared_region.make_backend", lambda name, **_: Deriving())

    def run_deriving(store: Path | bool, *calls: Any, refusals: Sequence[Declined] = (), **options: Any) -> Stats:
        monkeypatch.setattr(Deriving, "generals", [])
        monkeypatch.setattr(Deriving, "refusals", [*refusals])
        stats = run(store, *((3, each) if isinstance(each, int) else each for each in calls), **options)
        assert len(Deriving.generals) == stats.generalizations and not Deriving.refusals
        return stats

    return run_deriving


def list_entries(store: Path, of_sizes: str | None) -> list[Entry]:
    """Returns the entries of code that is derived from code for any sizes, or else compiled alone."""
    opened = Store.open(store)
    entries = [opened.entry(one.digest, one.backend) for one in opened.entries() if is_compiled(one.backend)]
    return [entry for entry in entries if read_key(entry.text).get(SIZES) == of_sizes]


def list_lengths(store: Path, of_sizes: str | None) -> list[int]:
    tasks = [read_request(Store.open(store), entry) for entry in list_entries(store, of_sizes)]
    assert all((task.as_general is None) == (of_sizes is None) for task in tasks)
    return sorted(task.request.layouts[0][0][1] for task in tasks)


@pytest.mark.parametrize("keeps", [True, False])
def test_code_for_each_size_is_made_of_code_for_any_from_the_second_on(keeps, tmp_path, derive):
    stats = derive(keeps and tmp_path / "one", 6, 9, 12, 9, 15)
    assert (counts(stats), stats.general_saved_seconds) == ((2, 0, 1, 2), 200.0)
    other_layouts = [[make(length, 4).t()] for length in (10, 11)]
    assert counts(derive(keeps and tmp_path / "other", (4, 6), (4, 9), *other_layouts)) == (3, 0, 2, 1)


def test_what_is_made_for_a_size_is_loaded_and_what_is_compiled_for_it_alone_comes_first(tmp_path, derive):
    derive(tmp_path, 6, 9, 12)
    assert (list_lengths(tmp_path, None), list_lengths(tmp_path, ANY_SIZES)) == ([6], [9, 12])
    assert counts(derive(tmp_path, 9, 12, 6)) == (0, 3, 0, 2)
    assert counts(derive(tmp_path, 12, 20, 21)) == (1, 1, 1, 2)  # 20 is the first new one
    assert counts(derive(tmp_path, 6, 9, sizes="static")) == (1, 1, 0, 0)
    assert counts(derive(tmp_path, 9, 12)) == (0, 2, 0, 1)


def test_where_no_code_is_made_for_a_size_that_is_noted_unless_it_may_be_made_later(tmp_path, derive):
    refusals = Declined("not now", Scope.STORING_NOW), Declined("never", Scope.GENERAL)
    stats = derive(tmp_path, 6, 9, 12, refusals=refusals)
    assert (counts(stats), stats.own_sizes) == ((3, 0, 0, 0), {"never": 1, "not now": 1})
    assert counts(derive(tmp_path, 9, 12)) == (0, 2, 0, 0)
    for entry in list_entries(tmp_path, None):
        (tmp_path / "entries" / entry.digest[:2] / entry.id).unlink()
    stats = derive(tmp_path, 9, 12)
    assert (counts(stats), stats.own_sizes) == ((2, 0, 1, 0), {"never": 1})


def test_static_sizes_have_code_of_their_own_in_a_cache_that_has_other_code_for_them(derive):
    cache, found = fusioncache.Cache(store=False, record=False), []
    for sizes in ("auto", "static", "auto"):
        compiled, transform = compile_with(scale, cache=cache, sizes=sizes)
        for length in (6, 9):
            call(compiled, scale, make(3, length))
        found.append(counts(transform.stats()))
    assert found == [(2, 0, 1, 0), (1, 0, 0, 0), (0, 0, 0, 0)]


@pytest.mark.parametrize(("function", "expected"), [(lambda x: x.sum(0) * 2, nullcontext()), (scale, None)])
def test_code_of_any_sizes_may_differ_in_sums_whichever_transform_called_it_first(
    derive, monkeypatch, function, expected
):
    persist = Deriving.persist_size

    def persist_other_bits(*given):
        run = persist(*given).run
        return Compiled(lambda args: [torch.nextafter(run(args)[0], torch.tensor(9.0))], {"code": CODE}, None)

    monkeypatch.setattr(Deriving, "persist_size", persist_other_bits)
    cache = fusioncache.Cache(store=False, record=False)
    for verify in (False, True):
        compiled, _ = compile_with(function, cache=cache, verify=verify)
        compiled(make(3, 6))
        with expected or (pytest.raises(VerificationError) if verify else nullcontext()):
            compiled(make(3, 9))


class Beside(Recorder):
    """Compiles a request, as another process would, when the call that needs it waits."""

    def __init__(self, store: Path):
        super().__init__()
        self.compiler = EntryCompiler(Store.open(store))

    def wait_for(self, key: Key) -> Wait:
        request = self.handed.pop(key.digest, None)
        if request is None:
            return Wait()
        task = CompileTask(request.request, request.instance, key.digest, None, request.as_general)
        return Wait(by_helper=self.compiler.compile(task).result != "refused")


@pytest.fixture
def beside(tmp_path, monkeypatch) -> None:
    """Emulates another process that compiles what calls will ask for."""

    def find(cache: fusioncache.Cache, *_: Any, **__: Any) -> Helpers:
        cache.helpers = cache.helpers or Beside(tmp_path)
        return cache.helpers

    monkeypatch.setattr(ahead, "find_helpers", find)
    monkeypatch.setattr(entry_compiler, "make_backend", lambda name, **_: Deriving())


@pytest.mark.usefixtures("beside")
def test_sizes_that_another_process_makes_are_its_help(tmp_path, derive):
    stats = derive(tmp_path, 6, 9, 12, 15, programs=False)
    assert (counts(stats), stats.handed_over, stats.helped) == ((0, 4, 1, 2), 4, 4)


@pytest.mark.usefixtures("beside")
def test_what_another_process_compiles_for_one_size_instead_is_loaded(tmp_path, derive):
    stats = derive(tmp_path, 6, 9, refusals=[Declined("not now", Scope.STORING_NOW)])
    assert (counts(stats), list_lengths(tmp_path, None)) == ((0, 2, 0, 0), [6, 9])
    assert stats.own_sizes == {"another process compiled it for one size": 1}


@pytest.mark.usefixtures("beside")
@pytest.mark.parametrize(("refused", "length", "expected"), [(None, 6, (0, 1, 1, 0)), (ANY_SIZES, 9, (0, 1, 0, 0))])
def test_of_two_ways_the_one_that_is_not_refused_is_asked_for(tmp_path, derive, refused, length, expected):
    derive(tmp_path, 6, 9)
    for entry in list_entries(tmp_path, refused):
        key, opened = Key(entry.digest, entry.text, ()), Store.open(tmp_path)
        opened.remove(key, entry.backend)
        opened.save(key, entry.backend, {REFUSED: b"never"})
    stats = derive(tmp_path, length, programs=False)
    assert (counts(stats), stats.handed_over, stats.helped) == (expected, 1, 1)


def test_code_of_any_sizes_that_does_not_run_says_nothing_of_code_for_one(tmp_path, derive, monkeypatch):
    with monkeypatch.context() as patch, pytest.warns(RuntimeWarning, match="is rejected"):
        broken = Compiled(Mock(side_effect=RuntimeError("no launch")), {"code": CODE}, None)
        patch.setattr(Deriving, "persist_size", lambda *_: broken)
        compiled, _ = compile_with(scale, cache=fusioncache.Cache(store=tmp_path, record=False))
        for length in (6, 9):
            call(compiled, scale, make(3, length))
    stats = derive(tmp_path, 9)
    assert (counts(stats), stats.own_sizes) == ((1, 0, 0, 0), {"RuntimeError: no launch": 1})


def test_a_refusal_keeps_no_tensor_alive(monkeypatch):
    """The error would keep the frames of its traceback alive: a whole model, and what is computed with it."""

    def refuse(*_):
        raise Declined("no", Scope.GENERAL)

    monkeypatch.setattr(Eager, "persist_general", refuse)
    model = Scale()
    compiled, transform = compile_with(model, cache=fusioncache.Cache(store=False, record=False))
    for length in (6, 9, 5):
        x = torch.randn(length, 4, requires_grad=True)
        result = compiled(x)
        result.sum().backward()
    assert transform.stats().own_sizes["no"] > 1
    kept = [weakref.ref(each) for each in (result, x.grad, model.weight, model.weight.grad)]
    del model, compiled, result, x
    gc.collect()
    assert not [each() for each in kept if each() is not None]


def test_where_general_code_is_not_for_a_size_or_fails_sizes_have_their_own(monkeypatch):
    """Conditions decide: the first general code is for sizes up to six, as if a compiler had found that limit."""
    persist_general = Eager.persist_general

    def compile_some(*given):
        compiled = persist_general(*given)

        def run_some(args, values):
            if values[0] > 6:
                raise Declined("too large", Scope.GENERAL)
            return compiled.run(args, values)

        return replace(compiled, run=run_some)

    for compile_it, expected, reasons in (
        (compile_some, (3, 0, 1, 1), {"too large": 1}),
        (Mock(side_effect=ZeroDivisionError), (4, 0, 0, 0), {"compile failed: ZeroDivisionError": 3}),
    ):
        monkeypatch.setattr(Eager, "persist_general", compile_it)
        stats = run(False, *((3, length) for length in (4, 6, 10, 5)))
        assert (counts(stats), stats.own_sizes) == (expected, reasons)


def test_the_environment_says_what_the_option_does_not(monkeypatch):
    monkeypatch.setenv("FUSIONCACHE_SIZES", "static")
    for sizes, general in ((None, 0), ("auto", 1)):
        assert run(False, (2, 3), (2, 4), sizes=sizes).generalizations == general
    monkeypatch.setenv("FUSIONCACHE_SIZES", "some")
    with pytest.raises(ValueError, match="FUSIONCACHE_SIZES must be auto, static or dynamic, got 'some'"):
        fusioncache.FusionCache(cache=fusioncache.Cache(store=False, record=False))
    with pytest.raises(ValueError, match="sizes must be 'auto', 'static' or 'dynamic', got 'some'"):
        run(False, sizes="some")
