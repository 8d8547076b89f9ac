"""One compile for all ranks of a job, and no rank waits without end. A real job is in ``test_spec_ranks.py``."""

import os
import warnings
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as distributed
from hypothesis import given, settings
from hypothesis import strategies as st
from store_processes import Process, X, Y, make_region
from threads_at_once import run_at_once

from fusioncache.cache import peers as ranks_module
from fusioncache.cache.peers import Ranks, pack, unpack
from fusioncache.store import StoredArtifacts


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The store that the ranks of a job share."""
    store = distributed.HashStore()
    monkeypatch.setattr(ranks_module, "find_job_store", lambda: store)
    return store


def rank(path: Path, wait_seconds: float = 60.0) -> Process:
    """A rank with a directory of its own: on another machine."""
    return Process(path / os.urandom(4).hex(), ranks=Ranks(wait_seconds))


def test_the_first_rank_compiles_and_the_others_load(tmp_path, job):
    ranks = [rank(tmp_path) for _ in range(4)]
    run_at_once(*(partial(one.run, make_region(), X, Y) for one in ranks))
    assert sorted(told for one in ranks for told in one.told) == [False, True, True, True]
    assert all(torch.equal(one.run(make_region(), X, Y)[1], Y - X) for one in ranks)


def test_a_rank_that_hits_leaves_the_others_alone(tmp_path, job):
    hitting = rank(tmp_path)
    hitting.run(make_region(), X, Y)
    again = Process(hitting.cache.store.directory, ranks=Ranks(60.0))
    again.run(make_region(), X, Y)
    assert again.told == [True]
    # The job's store was there when the first one compiled, so that a rank without the directory takes it from there.
    missing = rank(tmp_path)
    missing.run(make_region(), X, Y)
    assert missing.told == [True]


def test_a_dead_rank_costs_one_wait(tmp_path, job):
    key = rank(tmp_path).key(make_region(), X, Y)
    assert job.add(f"{key.digest}.eager/claims", 1) == 1  # and then it died
    waiting = rank(tmp_path, wait_seconds=0.2)
    with pytest.warns(RuntimeWarning, match="another rank did not share"):
        assert torch.equal(waiting.run(make_region(), X, Y)[1], Y - X)
    assert waiting.told == [False]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        waiting.run(make_region(), X.mT.contiguous().mT, Y)
        assert job.num_keys() == 1


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
    assert other.told == [False]


def test_a_store_that_fails_costs_a_warning(tmp_path, monkeypatch):
    broken = SimpleNamespace(add=lambda *_: 1 / 0)
    monkeypatch.setattr(ranks_module, "find_job_store", lambda: broken)
    one = rank(tmp_path)
    with pytest.warns(RuntimeWarning, match="another rank did not share"):
        assert torch.equal(one.run(make_region(), X, Y)[1], Y - X)


@settings(max_examples=30)
@given(artifacts=st.dictionaries(st.text(max_size=8), st.binary(max_size=40), max_size=4), place=st.integers(0, 200))
def test_a_message_comes_back_whole_or_not_at_all(artifacts, place):
    message = bytearray(pack(StoredArtifacts(artifacts, 1.5)))
    found = unpack(bytes(message))
    assert (found, found.seconds) == (artifacts, 1.5)
    message[place % len(message)] ^= 1
    with pytest.raises(ValueError, match="wrong checksum"):
        unpack(bytes(message))
