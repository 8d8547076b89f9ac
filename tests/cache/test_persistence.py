"""Stored executables: loaded if possible, otherwise compiled once, and no failure affects a model.

The ranks of a job compile once between them, and no rank waits without end. A real job is in ``test_spec_ranks.py``.
"""

import os
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as distributed
from drawn_regions import Sketch
from hypothesis import given, settings
from hypothesis import strategies as st
from store_processes import PersistentEager, Process, X, Y, make_region

from fusioncache.cache import peers as ranks_module
from fusioncache.cache.executable import REGION
from fusioncache.cache.peers import Ranks, pack, unpack
from fusioncache.ir import Instance
from fusioncache.ir.template import encode_region
from fusioncache.store import StoredArtifacts
from fusioncache.template.canonical import canonicalize
from fusioncache.template.writer import instance_of


def test_a_second_process_loads_a_region_in_the_order_that_it_was_compiled_in(tmp_path):
    first, second = Process(tmp_path), Process(tmp_path)
    first.run(make_region(), X, Y)
    difference, sine = second.run(make_region(swapped=True), Y, X)
    assert torch.equal(sine, torch.sin(X)) and torch.equal(difference, Y - X)
    assert second.executable(make_region(swapped=True)).sources == (make_region(),)
    assert (len(first.backend.compiled), len(second.backend.compiled), len(second.backend.loaded)) == (1, 0, 1)
    (entry,) = second.cache.store.entries()
    assert (first.loaded, first.seconds, second.loaded, second.seconds) == ([False], [0.0], [True], [entry.seconds])


class AnyStrides(PersistentEager):
    """A backend whose compiled functions take any strides."""

    def layout(self, layouts: Any) -> Any:
        return len(layouts)


COLUMNS = [each.mT.contiguous().mT for each in (X, Y)]


def test_what_was_loaded_for_some_strides_is_not_called_with_others(tmp_path):
    """Even if the functions that the backend itself compiles take any."""
    first, second = Process(tmp_path), Process(tmp_path, AnyStrides())
    first.run(make_region(), X, Y)
    second.run(make_region(), X, Y)
    assert torch.equal(second.run(make_region(), *COLUMNS)[0], torch.sin(X))
    assert second.loaded == [True, False]


def test_what_is_quicker_is_called_with_the_layouts_that_it_was_made_for(tmp_path):
    """If the compiler's function takes other strides as well, only that function is called with them."""

    class WithExact(AnyStrides):
        def persist(self, graph: Any, args: Any) -> Any:
            compiled = super().persist(graph, args)
            return replace(
                compiled, exact_run=lambda args: called.append([arg.stride() for arg in args]) or compiled.run(args)
            )

    called: list[Any] = []
    process = Process(tmp_path, WithExact())
    for x, y in ((X, Y), COLUMNS, (X, Y)):
        difference, sine = process.run(make_region(swapped=True), y, x)
        assert torch.equal(sine, torch.sin(X)) and torch.equal(difference, Y - X)
    assert called == [[(3, 1), (3, 1)]] * 2 and len(process.backend.compiled) == 1


@pytest.mark.parametrize("changed", ["backend", "versions", "machine", "layout"])
def test_each_ingredient_of_a_key_makes_a_miss(tmp_path, changed):
    class Other(PersistentEager):
        def environment(self):
            return {**super().environment(), **({changed: "other"} if changed in ("backend", "versions") else {})}

    Process(tmp_path).run(make_region(), X, Y)
    other = Process(tmp_path, Other({"machine": "other"} if changed == "machine" else None))
    x = COLUMNS[0] if changed == "layout" else X
    other.run(make_region(), x, Y)
    same = Process(tmp_path)
    same.run(make_region(), X, Y)
    assert (other.loaded, same.loaded) == ([False], [True])
    one, two = (
        {part.name: part.digest for part in process.key(make_region(), given, Y).ingredients}
        for process, given in ((same, X), (other, x))
    )
    assert {name for name in one if one[name] != two[name]} == {changed}


@pytest.mark.parametrize("setting", ["settings", "machine"])
def test_what_was_compiled_while_settings_changed_is_not_kept(tmp_path, setting):
    class Changing(PersistentEager):
        def environment(self):
            return {**super().environment(), **self.find("settings")}

        def artifact_environment(self):
            return {**super().artifact_environment(), **self.find("machine")}

        def find(self, name):
            return {name: f"compiled {len(self.compiled)}"} if name == setting else {}

    first, second = Process(tmp_path, Changing()), Process(tmp_path, Changing())
    for process in (first, second):
        assert torch.equal(process.run(make_region(), X, Y)[1], Y - X)
        assert process.loaded == [False]
        assert process.ledger.stats().unkept == {"cannot be stored: settings changed while it was compiled": 1}
    assert not second.cache.store.entries()


def test_what_cannot_be_kept_is_compiled_by_each_process_and_counted(tmp_path):
    for process in (Process(tmp_path, PersistentEager(refuse="a number")), Process(tmp_path)):
        process.run(make_region(), X, Y)
        assert process.loaded == [False]
        assert process.ledger.stats().unkept == {"cannot be stored: a number": 1}


def encode_other(inputs: int, sines: int) -> bytes:
    """Returns a region of another template, with so many inputs and outputs."""
    s = Sketch()
    graph = s.graph(*[s.op("sin", value) for value in [s.input() for _ in range(inputs)][:1] * sines])
    return encode_region(Instance(graph, tuple(range(inputs)), tuple(range(sines))))


SPOILT = {
    "other code": lambda artifacts: {**artifacts, "code": b"something else"},
    "no code": lambda artifacts: {REGION: artifacts[REGION]},
    "no region": lambda artifacts: {"code": artifacts["code"]},
    "an empty region": lambda artifacts: {**artifacts, REGION: b"{}"},
    "half a region": lambda artifacts: {**artifacts, REGION: artifacts[REGION][:-1]},
    "a region with other inputs": lambda artifacts: {**artifacts, REGION: encode_other(1, 2)},
    "a region with other outputs": lambda artifacts: {**artifacts, REGION: encode_other(2, 1)},
}


@pytest.mark.parametrize("how", SPOILT)
def test_artifacts_that_do_not_load_are_compiled_again_and_replaced(tmp_path, how):
    first = Process(tmp_path)
    region = encode_region(instance_of(make_region(), canonicalize(make_region()).binding))
    good = first.backend.persist(make_region(), [X, Y]).artifacts | {REGION: region}
    first.cache.store.save(first.key(make_region(), X, Y), "eager", SPOILT[how](good))
    second, third = Process(tmp_path), Process(tmp_path)
    with pytest.warns(RuntimeWarning, match="a stored artifact is not used"):
        assert torch.equal(second.run(make_region(), X, Y)[1], Y - X)
    third.run(make_region(), X, Y)
    assert (second.loaded, third.loaded) == ([False], [True])


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The store that the ranks of a job share."""
    store = distributed.HashStore()
    monkeypatch.setattr(ranks_module, "find_job_store", lambda: store)
    return store


def rank(path: Path, wait_seconds: float = 60.0) -> Process:
    """Returns a rank with its own directory, as on another machine."""
    return Process(path / os.urandom(4).hex(), ranks=Ranks(wait_seconds))


def test_a_dead_rank_costs_one_wait_and_a_store_that_fails_a_warning(tmp_path, job, monkeypatch):
    key = rank(tmp_path).key(make_region(), X, Y)
    assert job.add(f"{key.digest}.eager/claims", 1) == 1  # a rank claimed it, and then died
    waiting = rank(tmp_path, wait_seconds=0.2)
    with pytest.warns(RuntimeWarning, match="another rank did not share"):
        assert torch.equal(waiting.run(make_region(), X, Y)[1], Y - X)
    assert waiting.loaded == [False]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        waiting.run(make_region(), X.mT.contiguous().mT, Y)
        assert job.num_keys() == 1
    monkeypatch.setattr(ranks_module, "find_job_store", lambda: SimpleNamespace(add=lambda *_: 1 / 0))
    with pytest.warns(RuntimeWarning, match="another rank did not share"):
        assert torch.equal(rank(tmp_path).run(make_region(), X, Y)[1], Y - X)


@pytest.mark.parametrize("fails", [True, False])
def test_what_one_rank_cannot_share_the_others_compile(tmp_path, job, fails):
    first, other = rank(tmp_path), rank(tmp_path)
    if fails:
        first.backend.error = RuntimeError("out of registers")
        with pytest.raises(RuntimeError, match="out of registers"):
            first.run(make_region(), X, Y)
    else:
        first.backend.refuse = "a number among its inputs"
        first.run(make_region(), X, Y)
    other.run(make_region(), X, Y)
    assert other.loaded == [False]


@settings(max_examples=30)
@given(artifacts=st.dictionaries(st.text(max_size=8), st.binary(max_size=40), max_size=4), place=st.integers(0, 200))
def test_a_message_comes_back_whole_or_not_at_all(artifacts, place):
    message = bytearray(pack(StoredArtifacts(artifacts, 1.5)))
    found = unpack(bytes(message))
    assert (found, found.seconds) == (artifacts, 1.5)
    message[place % len(message)] ^= 1
    with pytest.raises(ValueError, match="wrong checksum"):
        unpack(bytes(message))
