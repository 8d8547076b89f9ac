"""Variables that inner functions share: ``torch.nn.Module`` makes nine such cells in each call, for hooks."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import CellType
from typing import Any

from fusioncache.thunder_adapter.interpreter.steps import keeps_history, wants_every_step
from fusioncache.thunder_adapter.interpreter.wrapped import find_function, is_wrapped


def shorten_making(original: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a cell at once, where Thunder looks for ``__new__`` and ``__init__`` of its type, and calls both."""
    from thunder.core import interpreter

    @wraps(original)
    def make_cell_handler(inst: Any, /, frame: Any, **kwargs: Any) -> Any:
        make = find_function(CellType.__new__)
        if make is not interpreter._cell_new_provenance_tracking_lookaside or wants_every_step():
            return original(inst, frame=frame, **kwargs)
        value, code, kind = frame.localsplus[inst.arg], frame.code, interpreter.wrap_const(CellType)
        if isinstance(value, interpreter.Py_NULL):
            frame.localsplus[inst.arg] = make(kind)
        else:
            value = interpreter.store_deref_callback(value, inst.argval, code.co_cellvars, code.co_freevars)
            frame.localsplus[inst.arg] = make(kind, value)
        return None

    return make_cell_handler


def shorten_loading(original: Callable[..., Any]) -> Callable[..., Any]:
    """Takes what is known to be in a cell, where Thunder asks for an attribute."""
    from thunder.core import interpreter

    @wraps(original)
    def load_deref_handler(inst: Any, /, stack: Any, co: Any, frame: Any, **kwargs: Any) -> Any:
        cell = frame.localsplus[inst.arg]
        known = cell.attribute_wrappers.get("cell_contents") if is_wrapped(cell, CellType) else None
        if known is None or isinstance(known.value, list) or cell.value == CellType() or keeps_history():
            return original(inst, stack=stack, co=co, frame=frame, **kwargs)
        stack.append(interpreter.load_deref_callback(known, frame.get_localsplus_name(inst.arg)))
        return None

    return load_deref_handler
