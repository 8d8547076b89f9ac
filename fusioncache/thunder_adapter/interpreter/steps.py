"""Whether somebody wants each step that the interpreter takes, and would miss those that a shortcut leaves out."""

from __future__ import annotations

from functools import cache
from typing import Any


def keeps_history() -> bool:
    """Tells whether each call and each instruction that is interpreted is written down."""
    kept: bool = _thunder()[0].get_interpreterruntimectx()._record_history
    return kept


def wants_every_step() -> bool:
    """Tells whether not only a trace is made: whether a history is kept, or values of no known origin are reported."""
    interpreter, jit_ext, allow = _thunder()
    if interpreter.get_interpretercompilectx()._fn_lookaside is not jit_ext.general_jit_lookaside:
        return True
    return keeps_history() or jit_ext.get_jit_ctx().sharp_edges is not allow


@cache
def _thunder() -> tuple[Any, Any, Any]:
    """Imports it once: an import takes longer than the rest of a question."""
    from thunder.core import interpreter, jit_ext
    from thunder.core.options import SHARP_EDGES_OPTIONS

    return interpreter, jit_ext, SHARP_EDGES_OPTIONS.ALLOW
