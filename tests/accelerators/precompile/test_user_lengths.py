"""Lengths named by the user: their templates are compiled before a call uses them, in a job and by ``warm``."""

import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import pytest
import torch
from click.testing import CliRunner
from models import Blocks, are_same, compile_with, step
from pool_processes import fork_process
from recorded_requests import Recorder
from store_processes import CODE, PersistentEager

import fusioncache
from fusioncache.accelerators.precompile import pool, workers
from fusioncache.accelerators.sizes.scaling import check_lengths, scale_sizes
from fusioncache.backends.api import Compiled
from fusioncache.backends.eager import Eager
from fusioncache.backends.torch_settings import apply_torch_settings
from fusioncache.cli.main import main
from fusioncache.ir import Declined, GeneralInstance, Graph
from fusioncache.store import Store


class Derived(PersistentEager):
    """A backend that derives code for one size from general code, and stores that, as nvFuser does."""

    derives_sizes = True
    log = Path(os.devnull)
    """Gets a line for each general compile of any process."""
    kept: ClassVar[set[Graph]] = set()

    def persist_size(self, as_general: GeneralInstance, region: Graph, args: Sequence[Any]) -> Compiled:
        if as_general.general.graph not in self.kept:
            self.kept.add(as_general.general.graph)
            with self.log.open("a") as file:
                file.write(f"{as_general.general.graph}\n")
        return Compiled(Eager.compile(self, region, args), {"code": CODE}, None)


@pytest.fixture(autouse=True, scope="module")
def derived() -> Iterator[None]:
    """Makes the eager backend store code that it derives from general code."""
    with pytest.MonkeyPatch.context() as patch:
        for place in ("transform.shared_region", "accelerators.precompile.entry_compiler"):
            patch.setattr(f"fusioncache.{place}.make_backend", lambda *args, **options: Derived())
        patch.setattr("fusioncache.accelerators.precompile.unseen_lengths.backend_class", lambda name: Derived)
        patch.setattr(pool, "start_process", fork_process)
        patch.setattr(workers, "LONG_SECONDS", float("inf"))  # else another worker may compile it on a busy machine
        yield


def count_general() -> list[int]:
    """Returns how often processes compiled each region for any sizes."""
    return [*Counter(Derived.log.read_text().splitlines()).values()]


def train(store: Path, *lengths: int, recorder: Recorder | None = None, **options: Any) -> tuple[list[Any], Any]:
    """Takes a step at each length as a separate process would; returns the last results, and the stats."""
    torch.manual_seed(0)
    model, cache = Blocks(2), fusioncache.Cache(record=False, store=store)
    cache.helpers = recorder
    compiled, transform = compile_with(model, backend="eager", cache=cache, **options)
    for length in lengths:
        results = step(compiled, model, torch.linspace(-1, 1, length * 16).reshape(length, 16))
    return results, transform.stats()


@pytest.fixture(scope="module")
def trained(derived: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A store of a process that took steps at two lengths, and the number of its compiles."""
    store = tmp_path_factory.mktemp("trained") / "store"
    return store, train(store, 5, 7)[1].compiles


@pytest.fixture
def store(trained: tuple[Path, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(Derived, "log", tmp_path / "log")
    Derived.kept.clear()
    return shutil.copytree(trained[0], tmp_path / "store", symlinks=True)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    found = Recorder()
    monkeypatch.setattr("fusioncache.accelerators.precompile.ahead.find_helpers", lambda *args, **options: found)
    return found


def test_what_is_queued_for_a_length_is_what_its_call_asks_for(tmp_path, recorder):
    _, stats = train(tmp_path, 5, 7, recorder=recorder, lengths=[9, 16, 12])
    assert stats.lengths_queued == len(recorder.later) == stats.lengths_compiled > 0
    # At 16 the length equals the width, so that other operations are equal.
    assert [reason.partition(":")[0] for reason in stats.lengths_refused] == ["length 16"]
    queued = len(recorder.later)
    _, stats = train(tmp_path, 9, 12, recorder=recorder)
    assert len(recorder.later.keys() - recorder.wanted) == 2  # the expanded gradient of a sum, at each length
    assert stats.lengths_queued == 0 and len(recorder.later) == queued  # because no lengths are named


def test_a_later_process_queues_them_from_what_is_stored(tmp_path, recorder):
    train(tmp_path, 5, 7)
    _, stats = train(tmp_path, 7, recorder=recorder, lengths=range(8, 11))
    assert stats.programs_loaded == 1 and stats.lengths_queued == 0  # a loaded program needs no family
    _, stats = train(tmp_path, 8, recorder=recorder, lengths=range(8, 11))
    assert stats.programs_filled == 1 and stats.lengths_queued == len(recorder.later) > 0


@pytest.mark.parametrize(("lengths", "expected"), [((5, 7), 0), ((5, 9, 11), 1)])
def test_helpers_get_ready_once_for_lengths_that_the_store_lacks(store, recorder, lengths, expected):
    _, stats = train(store, *lengths, recorder=recorder)
    assert stats.programs_loaded + stats.programs_filled == len(lengths)
    assert recorder.warned == expected


CHANGES = {
    "settings": lambda: apply_torch_settings({"torch.backends.cudnn.benchmark": True}),
    "versions": lambda: mock.patch.object(
        Derived, "environment", lambda self: {**Eager().environment(), "versions": ""}
    ),
    "machine": lambda: mock.patch.object(Derived, "artifact_environment", lambda self: {"machine": "there"}),
}


@pytest.mark.filterwarnings("ignore:This process")
def test_warm_compiles_lengths_that_no_process_has_used(store, trained, tmp_path):
    """Warming is for the settings, versions and machine of the process. All lengths share one compile for any sizes."""
    _, compiles = trained
    expected, _ = train(tmp_path / "other", 11)
    warmed = fusioncache.warm(store, lengths=[9, 11, 13], jobs=2)
    dense = compiles // 2 - 1  # except the template that takes the expanded gradient of a sum
    assert warmed.compiled == 3 * dense and warmed.ready == compiles and not warmed.failed
    assert count_general() == [1] * dense
    assert fusioncache.warm(store, lengths=[9, 11]).compiled == 0
    for change in CHANGES.values():
        with change():
            assert train(store, 11)[1].compiles == compiles / 2  # all of them
    results, stats = train(store, 11)
    assert (stats.compiles, stats.programs_filled) == (1, 1)
    assert are_same(results, expected)
    assert train(store, 10)[1].compiles == compiles / 2


@pytest.mark.filterwarnings("ignore:This process")
@pytest.mark.parametrize("jobs", [1, 2])
def test_warm_makes_again_what_was_made_of_code_for_any_sizes(store, trained, tmp_path, jobs):
    _, compiles = trained
    expected, _ = train(tmp_path / "other", 5, 7)
    (tmp_path / "log").unlink(missing_ok=True)
    Derived.kept.clear()
    with CHANGES["machine"]():
        warmed = fusioncache.warm(store, jobs=jobs)
        assert (warmed.compiled, warmed.ready, warmed.refused) == (compiles, 0, {})
        assert count_general() == [1] * (compiles // 2)
        results, stats = train(store, 5, 7)
    assert not stats.compiles and are_same(results, expected)


def test_lengths_that_no_code_for_any_sizes_serves_are_compiled_alone(store, trained, monkeypatch):
    """Each is compiled once, even if a stored length was compiled alone on one machine, and not on another."""
    with CHANGES["machine"]():
        train(store, 7, sizes="static")
    monkeypatch.setattr("fusioncache.cache.generals.MOST_ELEMENTS", 0)
    assert fusioncache.warm(store, lengths=[11]).templates == 2 * trained[1] - 1
    assert train(store, 11)[1].compiles == 1


def test_the_command_takes_rows_of_lengths(store):
    told = CliRunner().invoke(main, ["warm", str(store), "--lengths", "8:12:4,16", "--jobs", "1"])
    assert told.exit_code == 0 and told.output.startswith("compiled 18 of 39 templates in ")
    assert "left out 1: not at length 16: " in told.output
    assert [train(store, length)[1].compiles for length in (11, 12)] == [10, 1]


@pytest.mark.parametrize(
    ("lengths", "message"),
    [("32:", "no lengths"), ("8:16:0", "no lengths"), ("1,2", "at least 2"), ("2:999999999999", "at most 256")],
)
def test_the_command_says_what_is_wrong_with_lengths(tmp_path, lengths, message):
    Store.open(tmp_path)
    told = CliRunner().invoke(main, ["warm", str(tmp_path), "--lengths", lengths])
    assert told.exit_code == 2 and message in told.output


@pytest.mark.parametrize(
    ("lengths", "error"),
    [("32", TypeError), (32, TypeError), ([3.0], TypeError), ([True], TypeError), ([1], ValueError)],
)
def test_the_option_says_what_is_wrong_with_lengths(lengths, error):
    with pytest.raises(error, match="lengths"):
        fusioncache.FusionCache(lengths=lengths)


def test_lengths_are_taken_once_and_in_their_order():
    assert check_lengths([9, 5, 9]) == (9, 5) and check_lengths(None) == ()


SCALED = [
    ({0: (2, 64), 1: (2, 65)}, {0: (2, 96), 1: (2, 97)}, {0: (2, 128), 1: (2, 129)}),  # all grow by the same amount
    ({0: (64,), 1: (32, 8)}, {0: (96,), 1: (48, 8)}, {0: (128,), 1: (64, 8)}),  # all grow by the same factor
]


def test_sizes_follow_from_one_length_and_not_from_two():
    for one, other, expected in SCALED:
        assert scale_sizes(one, other, 128) == expected
    with pytest.raises(Declined):
        scale_sizes({0: (4, 64)}, {0: (8, 96)}, 128)
