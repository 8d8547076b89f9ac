"""What tests of shortcuts share: Thunder's sources are read once, though shortcuts are installed hundreds of times."""

import inspect
from collections.abc import Iterator
from functools import cache
from types import CodeType, SimpleNamespace

import pytest

from fusioncache.tracing import replacement


@pytest.fixture(scope="session", autouse=True)
def _sources_are_read_once() -> Iterator[None]:
    """Remembers sources by the code that they are of: code of another file or line is another code."""

    @cache
    def read(file: str, line: int, code: CodeType) -> str:
        return inspect.getsource(code)

    def getsource(of: object) -> str:
        return read(of.co_filename, of.co_firstlineno, of) if isinstance(of, CodeType) else inspect.getsource(of)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replacement, "inspect", SimpleNamespace(getsource=getsource))
        yield
