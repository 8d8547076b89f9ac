"""Fixtures and settings of all tests."""

import itertools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import quick_process
from hypothesis import HealthCheck, settings

# A busy machine makes everything slower. Pytest's time limit ends tests that hang.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

# Otherwise imports would start processes that compile, on machines with a GPU.
os.environ["FUSIONCACHE_JOBS"] = "0"


@pytest.fixture(scope="session")
def _directories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Returns an iterator of directories, one for each test. Pytest would list all existing ones for each new one."""
    directory = tmp_path_factory.mktemp("fusioncache")
    return (directory / str(number) for number in itertools.count())


@pytest.fixture(scope="session", autouse=True)
def _default_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keeps files of module fixtures, and of threads that outlive a test, out of the user's directory."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("FUSIONCACHE_DIR", str(tmp_path_factory.mktemp("between-tests")))
        # Python would run stale bytecode of a module that a test writes twice within a second, with equal lengths.
        environment.setenv("PYTHONDONTWRITEBYTECODE", "1")
        environment.setattr(sys, "dont_write_bytecode", True)
        yield


@pytest.fixture(autouse=True)
def _own_environment(_directories: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    directory = next(_directories)
    directory.mkdir()
    monkeypatch.setenv("FUSIONCACHE_DIR", str(directory))
    # Most tests count compilations without stored entries. Tests of the store enable it.
    monkeypatch.setenv("FUSIONCACHE_STORE", "0")
    # They count compilations of this process, also on machines with many cores.
    monkeypatch.setenv("FUSIONCACHE_JOBS", "0")
    # In workers of pytest-xdist it is the terminal's width, which commands would use.
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def eager_regions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs regions op by op that Thunder's executor compiles without a template: compilers are tested elsewhere."""
    monkeypatch.setattr("fusioncache.transform.executor.best_backend", lambda device: "eager")


@pytest.fixture
def decline_single_op_regions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Declines to share regions of one operation."""
    from fusioncache.ir.errors import Declined, Scope
    from fusioncache.transform import sharing

    def decline(fusion: Any) -> Any:
        if len(fusion.subsymbols) == 1:
            raise Declined("a lonely operation", Scope.REGION)
        return region_of(fusion)

    region_of = sharing.region_of
    monkeypatch.setattr(sharing, "region_of", decline)


@pytest.fixture
def cheap_digests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes digests of secrets quick to compute, and forgets those of earlier tests."""
    from fusioncache.process import secrets

    monkeypatch.setattr(secrets, "COST", 2)
    secrets.forget()


@pytest.fixture
def untried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes Thunder an untested version."""
    from fusioncache.process.warning import warn_once

    warn_once.cache_clear()
    monkeypatch.setattr("thunder.__version__", "0.3.0.dev1")


@pytest.fixture
def cache() -> Any:
    from fusioncache import Cache

    return Cache()


@pytest.fixture
def store() -> Any:
    """Returns the store of this test's directory."""
    from fusioncache.store import Store

    return Store.open()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.hookimpl(tryfirst=True)  # before fixtures, which may trace a model
def pytest_runtest_setup() -> None:
    """Clears Dynamo's list of modules of earlier tests: Thunder fails if one dies while it iterates over them."""
    quick_process.skip_vector_checks()
    guard = sys.modules.get("torch._dynamo.mutation_guard")
    if guard is not None:
        guard.GenerationTracker.clear()
