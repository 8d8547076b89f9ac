"""A pool that starts while the package is imported: where it will be wanted, and as it will be."""

import sys
from collections.abc import Iterator

import pytest
from pool_processes import fork_process
from store_processes import fill_store

import fusioncache
from fusioncache.accelerators.precompile import pool
from fusioncache.accelerators.precompile.pool import CompilePool, find_pool, start_default_pool
from fusioncache.store import Store
from fusioncache.store.directory import default_path

pytestmark = pytest.mark.filterwarnings("ignore:This process")


@pytest.fixture(autouse=True)
def _wanted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process with a GPU open, that has cores for two others and an empty store."""
    monkeypatch.setattr(pool, "start_process", fork_process)
    monkeypatch.setattr(pool, "gpu_in_use", lambda: 0)
    monkeypatch.setattr(pool, "find_spec", lambda name: name)
    monkeypatch.setattr(CompilePool, "open_early", lambda self, device: None)
    monkeypatch.setenv("FUSIONCACHE_JOBS", "2")
    monkeypatch.delenv("FUSIONCACHE_STORE")
    yield
    for made in pool.pools.values():
        made.end()
    pool.pools.clear()


@pytest.mark.parametrize(("jobs", "backend"), [(2, "nvfuser"), (3, "nvfuser"), (2, "inductor")])
def test_the_first_cache_gets_the_pool_that_was_started_or_ends_it(jobs, backend):
    start_default_pool()
    (first,) = pool.pools.values()
    assert first.pid is not None and not first.is_wanted
    found = find_pool(Store.open(), jobs, backend)
    assert found is not None and found.is_wanted and (found.jobs, found.backend) == (jobs, backend)
    assert (found is first) == (not first.has_failed) == ((jobs, backend) == (2, "nvfuser"))
    assert find_pool(Store.open(), jobs + 1, backend) is found  # whatever the next one asks for


def test_a_pool_that_the_first_transform_does_without_is_ended():
    start_default_pool()
    (made,) = pool.pools.values()
    fusioncache.FusionCache(jobs=0)
    assert made.has_failed
    found = find_pool(Store.open(), 2, "nvfuser")
    assert found is not made
    fusioncache.FusionCache(jobs=0)
    assert found is not None and not found.has_failed


NONE = {
    "no jobs": lambda patch: patch.setenv("FUSIONCACHE_JOBS", "0"),
    "jobs that are no number, which is said when a cache asks": lambda patch: patch.setenv("FUSIONCACHE_JOBS", "some"),
    "no store": lambda patch: patch.setenv("FUSIONCACHE_STORE", "0"),
    "verify mode": lambda patch: patch.setenv("FUSIONCACHE_VERIFY", "1"),
    "another accelerator": lambda patch: patch.setenv("FUSIONCACHE_ACCELERATORS", "programs,tracing"),
    "no GPU in use": lambda patch: patch.setattr(pool, "gpu_in_use", lambda: None),
    "no nvFuser": lambda patch: patch.setattr(pool, "find_spec", lambda name: None),
    "few cores": lambda patch: (
        patch.delenv("FUSIONCACHE_JOBS"),
        patch.setattr(pool, "count_cores", lambda: 3),
    ),
    "a store that has something": lambda patch: fill_store(default_path()),
}


@pytest.mark.parametrize("change", NONE.values(), ids=NONE)
def test_none_starts_with(monkeypatch, change):
    change(monkeypatch)
    start_default_pool()
    assert not pool.pools


@pytest.mark.parametrize(("name", "starts"), [("FusionCache", 1), ("Plugin", 1), ("Cache", 0), ("Stats", 0)])
def test_what_users_register_starts_it_at_the_first_import(monkeypatch, name, starts):
    started = list[None]()
    monkeypatch.setattr(pool, "start_default_pool", lambda: started.append(None))
    monkeypatch.delitem(sys.modules, "fusioncache.fusion_cache", raising=False)
    for _ in range(2):
        assert getattr(fusioncache, name).__name__ == name
    assert len(started) == starts
