"""Sizes that an earlier process had: what the store has of them spares compiles, and is right or not used."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from models import are_same, compile_with
from store_processes import CODE, PersistentEager

import fusioncache
from fusioncache.backends.api import Compiled
from fusioncache.backends.inductor.backend import Inductor
from fusioncache.backends.torch_settings import apply_torch_settings
from fusioncache.cache.backend_executables import OFTEN, SOON
from fusioncache.cache.peers import Ask, Wait
from fusioncache.ir import Key
from fusioncache.ir.keys import GENERAL_LAYOUT
from fusioncache.observe.record.stats import Stats
from fusioncache.store import Store
from fusioncache.store.entry import SIZES_SLOT

pytestmark = pytest.mark.usefixtures("eager_regions")


class Storing(PersistentEager):
    """Stores what TorchInductor would, for layouts as it tells them apart, without a compiler."""

    compiles = True
    machine = "here"

    def layout(self, layouts):
        return Inductor().layout(layouts)

    def general_layout(self, layouts):
        return Inductor().general_layout(layouts)

    def artifact_environment(self):
        return {"machine": self.machine}

    def persist_general(self, general, args, values):
        return Compiled(self.compile_general(general, args, values), {"code": CODE}, None)

    def load_general(self, artifacts, general, args):
        assert artifacts["code"] == CODE
        return self.compile_general(general, args, general.values[0])


@pytest.fixture(scope="module", autouse=True)
def _backend():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fusioncache.transform.shared_region.make_backend", lambda name, **_: Storing())
        yield


def scale(x: torch.Tensor) -> torch.Tensor:
    return x * 0.3 + 1.5


class Scale(torch.nn.Module):
    """The same with a parameter, whose size tells one model from another."""

    def __init__(self, width: int = 4):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(0.5, 2, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight + 1.5


def run(store: Path, *shapes: tuple[int, ...], function: Callable = scale, sizes: str = "auto") -> Stats:
    """What a process does that has a cache and a transform of its own."""
    cache = fusioncache.Cache(store=store, record=False)
    compiled, transform = compile_with(function, cache=cache, sizes=sizes)
    with torch.no_grad():
        for shape in shapes:
            x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
            assert are_same([compiled(x)], [function(x)])
    stats = transform.stats()
    assert not stats.bypasses and not stats.unkept
    return stats


def counts(stats: Stats) -> tuple[int, int, int, int]:
    return stats.compiles, stats.loads, stats.generalizations, stats.general_hits


@pytest.fixture(scope="module")
def two_lengths(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that a process with one length has written, and one with another."""
    store = tmp_path_factory.mktemp("two")
    assert counts(run(store, (3, 6))) == (1, 0, 0, 0)
    assert counts(run(store, (3, 9))) == (1, 0, 1, 0)  # the second length, although this process saw no other one
    return store


def test_a_process_compiles_nothing_for_lengths_it_never_saw(two_lengths):
    stats = run(two_lengths, (3, 50), (3, 6), (3, 9), (3, 7))
    assert counts(stats) == (0, 1, 0, 4)  # the general code
    # The static one of the first length, and the general code.
    assert counts(run(two_lengths, (3, 6), (3, 50), (3, 9), (3, 7))) == (0, 2, 0, 3)
    assert run(two_lengths, (3, 50)).programs_loaded == 1
    assert counts(run(two_lengths, (3, 50))) == (0, 1, 0, 1)  # a loaded program


def test_what_is_not_equal_is_compiled(two_lengths, tmp_path):
    store = shutil.copytree(two_lengths, tmp_path / "store")
    assert counts(run(store, (1, 9))) == (1, 0, 0, 0)  # 1 is never a length
    assert counts(run(store, (4, 11))) == (1, 0, 1, 0)  # the batch varies as well: more general
    assert counts(run(store, (5, 13), (3, 21))) == (0, 1, 0, 2)
    assert counts(run(store, (3, 6), sizes="static")) == (0, 1, 0, 0)
    assert counts(run(store, (3, 9), sizes="static")) == (1, 0, 0, 0)


def test_what_code_depends_on_is_in_its_key(two_lengths, tmp_path, monkeypatch):
    store = shutil.copytree(two_lengths, tmp_path / "store")
    with monkeypatch.context() as patch:
        patch.setattr(Storing, "machine", "there")
        assert counts(run(store, (3, 50))) == (1, 0, 1, 0)
    with apply_torch_settings({"torch.float32_matmul_precision": "high"}):
        assert counts(run(store, (3, 50))) == (1, 0, 0, 0)
    assert counts(run(store, (3, 50))) == (0, 1, 0, 1)


def test_another_kind_of_layout_has_code_of_its_own(two_lengths, tmp_path):
    store = shutil.copytree(two_lengths, tmp_path / "store")
    cache = fusioncache.Cache(store=store, record=False)
    compiled, transform = compile_with(scale, cache=cache)
    for length in (20, 30):
        x = torch.randn(length, 3).t()
        result = compiled(x)
        assert torch.equal(result, scale(x)) and result.stride() == scale(x).stride()
    assert counts(transform.stats()) == (1, 0, 1, 1)


def test_static_code_of_the_store_goes_before_what_must_be_compiled(tmp_path):
    assert counts(run(tmp_path, (3, 6), (3, 9), sizes="static")) == (2, 0, 0, 0)
    assert counts(run(tmp_path, (3, 6), (3, 9))) == (0, 2, 0, 0)
    # Once there is code for any sizes, nobody looks for static code of a size that may never come again.
    assert counts(run(tmp_path, (3, 9), (3, 12), (3, 6), (3, 14))) == (1, 1, 1, 2)


def test_a_function_goes_on_from_its_own_processes(tmp_path):
    assert counts(run(tmp_path, (3, 4), function=Scale())) == (1, 0, 0, 0)
    # A model of another width: one length of it is compiled as it is.
    assert counts(run(tmp_path, (3, 5), function=Scale(5))) == (1, 0, 0, 0)
    assert counts(run(tmp_path, (7, 5), function=Scale(5))) == (1, 0, 1, 0)
    assert counts(run(tmp_path, (9, 4), function=Scale(), sizes="dynamic")) == (1, 0, 1, 0)


def damage(store: Path, word: str) -> int:
    """Cuts the end off each object of the entries of this slot, or with this ingredient; returns how many."""
    damaged = 0
    opened = Store.open(store)
    for summary in opened.entries():
        entry = opened.entry(summary.digest, summary.backend)
        if word == entry.backend or word in dict(entry.ingredients):
            for artifact in entry.artifacts:
                path = store / "objects" / artifact.object[:2] / artifact.object
                path.chmod(0o600)
                path.write_bytes(path.read_bytes()[:-1])
                damaged += 1
    return damaged


@pytest.mark.parametrize(("word", "expected"), [(SIZES_SLOT, (1, 0, 0, 0)), (GENERAL_LAYOUT, (1, 0, 1, 0))])
def test_what_is_damaged_is_compiled(two_lengths, tmp_path, word, expected):
    store = shutil.copytree(two_lengths, tmp_path / "store")
    assert damage(store, word)
    with pytest.warns(RuntimeWarning, match="damaged"):
        assert counts(run(store, (3, 50))) == expected
    assert counts(run(store, (3, 50)))[0] == 0


class Beside:
    """A process beside this one that compiles what it is handed over at once."""

    def __init__(self, store: Path):
        self.store = store
        self.handed: list[Ask] = []

    def get_ready(self) -> None:
        pass

    def hand_over(self, asks: Sequence[Ask]) -> int:
        for ask in asks:
            run(self.store, tuple(ask.request.layouts[0][0]), sizes="static")
        self.handed += asks
        return len(asks)

    def is_done(self, key: Key) -> bool:
        return True

    def wait_for(self, key: Key) -> Wait:
        return Wait()

    def note_missing(self) -> bool:
        return False


def test_a_size_that_is_used_often_gets_its_own_function(two_lengths, tmp_path):
    store = shutil.copytree(two_lengths, tmp_path / "store")
    cache = fusioncache.Cache(store=store, record=False)
    cache.helpers = beside = Beside(store)
    compiled, transform = compile_with(scale, cache=cache)
    with torch.no_grad():
        for length in (9, 12):
            x = torch.randn(3, length)
            for _ in range(OFTEN + 30 if length == 9 else OFTEN - 1):
                assert torch.equal(compiled(x), scale(x))
    stats = transform.stats()
    assert len(beside.handed) == stats.handed_over == stats.reused_sizes == 1
    assert counts(stats) == (0, 2, 0, 2)
    assert counts(run(store, (3, 9))) == (0, 1, 0, 0)  # later processes have it at once


def test_a_size_whose_general_function_is_not_kept_is_there_for_later_processes(tmp_path, monkeypatch):
    """As with nvFuser. Without it two lengths would be compiled in each process, where ``static`` keeps both."""
    persist = Storing.persist_general
    monkeypatch.setattr(Storing, "persist_general", lambda *args: replace(persist(*args), artifacts=None))
    cache = fusioncache.Cache(store=tmp_path, record=False)
    cache.helpers = beside = Beside(tmp_path)
    compiled, transform = compile_with(scale, cache=cache)
    for length in (6, 9, 12):
        for _ in range(SOON + 1):
            compiled(torch.randn(3, length))
    assert counts(transform.stats()) == (2, 2, 1, 1)  # what is compiled at once is loaded at once
    assert [ask.request.layouts[0][0] for ask in beside.handed] == [(3, 9), (3, 12)]
    assert counts(run(tmp_path, (3, 6), (3, 9), (3, 12))) == (0, 3, 0, 0)
