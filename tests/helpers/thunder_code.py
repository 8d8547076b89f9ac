"""Which of Thunder's functions run while something is done, as they are or interpreted."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any
from unittest import mock

import thunder
from thunder.core import interpreter

_ROOT = Path(thunder.__file__).parent
_TOOL = 2
"""A number in ``sys.monitoring`` that neither debuggers, nor profilers, nor coverage, nor other helpers have."""


@contextlib.contextmanager
def note_functions() -> Iterator[set[tuple[str, str]]]:
    """Yields the module, and the name in it, of each function of Thunder's that runs until this ends.

    Of a function that is nested in another one, or in a class, the name is that of the outermost.
    """
    found: set[tuple[str, str]] = set()
    monitoring, run = sys.monitoring, interpreter._run_frame

    def note(code: CodeType, *_: Any) -> Any:
        path = Path(code.co_filename)
        if code.co_flags & inspect.CO_NEWLOCALS and code.co_flags & inspect.CO_OPTIMIZED and path.is_relative_to(_ROOT):
            parts = ("thunder", *path.relative_to(_ROOT).with_suffix("").parts)
            found.add((".".join(parts).removesuffix(".__init__"), code.co_qualname.partition(".")[0]))
        return monitoring.DISABLE

    def interpret(frame: Any, *args: Any, **kwargs: Any) -> Any:
        note(frame.code)
        return run(frame, *args, **kwargs)

    monitoring.use_tool_id(_TOOL, "note_functions")
    monitoring.register_callback(_TOOL, monitoring.events.PY_START, note)
    monitoring.restart_events()
    monitoring.set_events(_TOOL, monitoring.events.PY_START)
    try:
        with mock.patch.object(interpreter, "_run_frame", interpret):
            yield found
    finally:
        monitoring.set_events(_TOOL, monitoring.events.NO_EVENTS)
        monitoring.register_callback(_TOOL, monitoring.events.PY_START, None)
        monitoring.free_tool_id(_TOOL)
