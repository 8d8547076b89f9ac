"""Traces of a loaded program, for whoever looks at them."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from fusioncache.accelerators.programs.references import TraceText
from fusioncache.accelerators.programs.statements import StatementReader
from fusioncache.thunder_adapter.api import TraceCtx

_LATE = ("args", "scopes", "names", "_bound_symbols", "_siginfo")


class LoadedTrace(TraceCtx):
    """A trace that was loaded: its text, and what else Thunder's traces have.

    That is read off the text when it is asked for, and the text, of which there is one for each length, is held
    compressed. Of a template's call there are the arguments and results, not the operations that it consists of.

    Args:
        trace: the text.
        context: what the names in it stand for.

    Attributes:
        find_text: returns the text, and holds nothing else.
    """

    def __init__(self, trace: TraceText, context: Mapping[str, Any]):
        super().__init__(None)
        self.find_text = partial(_unpack, zlib.compress(trace.source.encode(), 1))
        self._loaded = replace(trace, source=""), context
        for name in _LATE:
            delattr(self, name)

    def __getattr__(self, name: str) -> Any:
        """Takes the text apart when the first of these attributes is asked for. The others Python finds itself."""
        if name not in _LATE:
            raise AttributeError(f"{type(self).__name__} has no attribute {name}")
        trace, context = self._loaded
        statements = StatementReader(replace(trace, source=self.find_text()), context)
        self.args, self.names = statements.args, set(statements.proxies)
        self._bound_symbols, self._siginfo = statements.bound_symbols, statements.signature()
        self.scopes = [self._bound_symbols]
        return self.__dict__[name]

    def python(self, *, print_depth: int = 1, include_decorators: bool = True) -> str:
        """Returns the text, whatever is asked for: it is what runs."""
        return self.find_text()

    def python_ctx(self) -> dict[str, Any]:
        """Returns what the names in the text stand for."""
        return dict(self._loaded[1])


def _unpack(content: bytes) -> str:
    return zlib.decompress(content).decode()
