"""Traces of a loaded program, for whoever looks at them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thunder.core.trace import TraceCtx

from fusioncache.program.text import TraceText


class LoadedTrace(TraceCtx):
    """A trace that was loaded."""

    def __init__(self, trace: TraceText, context: Mapping[str, Any]):
        super().__init__(None)
        self._text = trace
        self._context = context

    def python(self, *, print_depth: int = 1, include_decorators: bool = True) -> str:
        """Returns the text."""
        return self._text.source

    def python_ctx(self) -> dict[str, Any]:
        """Returns what the names in the text stand for."""
        return dict(self._context)
