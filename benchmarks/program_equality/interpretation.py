"""Counts what Thunder traces, and takes its interpreter away, without replacing any of its functions.

A program depends on Thunder's own functions. So nothing is put in their place: Python says where their code begins.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType

_TOOL = 4
"""A number that neither debuggers, nor profilers, nor coverage have in ``sys.monitoring``."""


@dataclass(slots=True)
class Interpretation:
    """What was interpreted.

    Attributes:
        traces: how often Thunder began to trace something.
    """

    traces: int = 0


@contextmanager
def watch_interpreter(*, allowed: bool) -> Iterator[Interpretation]:
    """Counts traces within its body.

    Args:
        allowed: whether Thunder may interpret anything; else an ``AssertionError`` is raised where it begins.
    """
    from thunder.core import interpreter, jit_ext

    # What stands around a function of Thunder's, as fusioncache's own does, has another code.
    jit, run = _own_code(jit_ext.thunder_general_jit), _own_code(interpreter.interpret)
    found = Interpretation()

    def note(code: CodeType, _: int) -> None:
        if code is jit:
            found.traces += 1
        elif not allowed:
            raise AssertionError("Thunder's interpreter was called")

    monitoring = sys.monitoring
    event = monitoring.events.PY_START
    monitoring.use_tool_id(_TOOL, "fusioncache's benchmarks")
    monitoring.register_callback(_TOOL, event, note)
    for code in (jit, run):
        monitoring.set_local_events(_TOOL, code, event)
    try:
        yield found
    finally:
        for code in (jit, run):
            monitoring.set_local_events(_TOOL, code, monitoring.events.NO_EVENTS)
        monitoring.register_callback(_TOOL, event, None)
        monitoring.free_tool_id(_TOOL)


def _own_code(function: object) -> CodeType:
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType):
        raise TypeError(f"{function} has no code of its own")
    return code
