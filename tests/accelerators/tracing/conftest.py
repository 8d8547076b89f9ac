"""Fixtures for tests of shortcuts: the original functions of Thunder, cached sources, no containers left behind."""

import inspect
from collections.abc import Iterator
from functools import cache
from types import CodeType, SimpleNamespace

import optree
import pytest
from thunder.core import pytree

from fusioncache import tracing
from fusioncache.thunder_adapter import installation


@pytest.fixture(autouse=True)
def _thunders_own() -> Iterator[None]:
    """Starts and ends every test with the original functions of Thunder."""
    tracing.uninstall()
    yield
    tracing.uninstall()


@pytest.fixture(scope="session", autouse=True)
def _sources_are_read_once() -> Iterator[None]:
    """Caches sources by file, line and code object: equal code of another file or line has its own source."""

    @cache
    def read(file: str, line: int, code: CodeType) -> str:
        return inspect.getsource(code)

    def getsource(of: object) -> str:
        return read(of.co_filename, of.co_firstlineno, of) if isinstance(of, CodeType) else inspect.getsource(of)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(installation, "inspect", SimpleNamespace(getsource=getsource))
        yield


@pytest.fixture(scope="module", autouse=True)
def _no_containers_are_left() -> Iterator[None]:
    """Unregisters data classes of tests from Thunder's pytrees, because later programs would depend on them."""
    before = set(pytree._registered_dataclasses)
    yield
    for each in pytree._registered_dataclasses - before:
        if each.__module__.partition(".")[0] != "thunder":
            pytree._registered_dataclasses.remove(each)
            optree.unregister_pytree_node(each, namespace=pytree.OPTREE_NAMESPACE)
