"""What all tests share."""

import itertools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import quick_process
from hypothesis import HealthCheck, settings

# On a busy machine everything takes longer. What hangs ends by pytest's own limit.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

# Else processes that compile would start beside imports, on machines with a GPU.
os.environ["FUSIONCACHE_JOBS"] = "0"


@pytest.fixture(scope="session")
def _directories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Names of directories, one for each test. Pytest would look through all that there are for each new one."""
    directory = tmp_path_factory.mktemp("fusioncache")
    return (directory / str(number) for number in itertools.count())


@pytest.fixture(scope="session", autouse=True)
def _default_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keeps what fixtures of whole files do, and what threads write after a test, out of the user's directory."""
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
    # Most tests count what a process compiles that finds nothing. Those of the store say so.
    monkeypatch.setenv("FUSIONCACHE_STORE", "0")
    # And what it compiles itself, on machines with many cores as well.
    monkeypatch.setenv("FUSIONCACHE_JOBS", "0")
    # A worker of pytest-xdist has the terminal's width there, which commands go by.
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def eager_regions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regions that Thunder's executor compiles by itself run op by op: compilers are tested elsewhere."""
    monkeypatch.setattr("fusioncache.transform.executor.best_backend", lambda device: "eager")


@pytest.fixture
def lonely_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regions of one operation are not shared."""
    from fusioncache.ir.errors import Declined, Scope
    from fusioncache.transform import sharing

    def decline(fusion: Any) -> Any:
        if len(fusion.subsymbols) == 1:
            raise Declined("a lonely operation", Scope.REGION)
        return region_of(fusion)

    region_of = sharing.region_of
    monkeypatch.setattr(sharing, "region_of", decline)


@pytest.fixture
def store() -> Any:
    """The store of this test's directory."""
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
    """Forgets modules of earlier tests, over which Thunder would fail if one dies while it iterates over them."""
    quick_process.take_vectors_on_trust()
    guard = sys.modules.get("torch._dynamo.mutation_guard")
    if guard is not None:
        guard.GenerationTracker.clear()
