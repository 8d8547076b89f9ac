"""Shortcuts for iteration: the next item of plain sequences and Python's iterators, without interpreting ``next``.

Thunder implements the iterator of a list in Python and interprets it: three frames and two assignments for each item.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import GeneratorType
from typing import Any

from thunder.core import interpreter

from fusioncache.thunder_adapter.shortcuts.values import (
    call_method,
    is_wrapped,
    look_up_builtins,
    needs_every_step,
    pass_stack,
    wrap_globals,
)

_BUILT_IN = tuple(map(type, map(iter, (range(0), {}, set()))))
_ITERATORS: tuple[Any, ...] = (interpreter.MappingKeysIterator, GeneratorType, *_BUILT_IN, zip, map, filter, enumerate)
_BY_MOVING_ON = ("hasattr", "type", "NotImplemented", "getattr", "setattr")
"""The builtins that Thunder's interpreted iterator looks up to advance: it adds to a number and sets an attribute."""


def shorten_next(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a lookaside of ``next`` for the iterators of plain lists and tuples, and for Python's iterators."""
    raised, call = interpreter.INTERPRETER_SIGNALS.EXCEPTION_RAISED, interpreter._interpret_call

    @wraps(original)
    def _next_lookaside(iterator: Any, *default: Any) -> Any:
        if len(default) > 1 or needs_every_step():
            return original(iterator, *default)
        names = wrap_globals(original)
        if is_wrapped(iterator, interpreter.SequenceIter) and _is_plain(iterator):
            item = _take(iterator, names)
        elif is_wrapped(iterator, *_ITERATORS):
            item = pass_stack(call(type(iterator.value).__next__, iterator))
        else:
            return original(iterator, *default)
        if item is not raised or not default:
            return item
        error = interpreter.get_interpreterruntimectx().curexc
        return default[0] if isinstance(error, StopIteration) else item

    return _next_lookaside


def _is_plain(iterator: Any) -> bool:
    """True if this iterates over a plain list or tuple, and its wrapper has its current position."""
    known = iterator.attribute_wrappers
    if not {"s", "next_pos", "is_reversed"} <= known.keys() or not is_wrapped(known["s"], list, tuple):
        return False
    return is_wrapped(known["next_pos"], int) and known["next_pos"].value == iterator.value.next_pos


def _take(iterator: Any, names: Any) -> Any:
    """Returns the next item and advances; or returns the signal of an exception if there is none."""
    known = iterator.attribute_wrappers
    sequence, position = known["s"], known["next_pos"]
    sequence.track_items()
    backwards = known["is_reversed"].value
    if not backwards:
        look_up_builtins(names, "len", "hasattr", "getattr", "isinstance", "int")
    if position.value < 0 if backwards else position.value >= len(sequence.value):
        look_up_builtins(names, "StopIteration")
        return interpreter.do_raise(StopIteration())
    item = call_method("__getitem__", sequence, position)
    look_up_builtins(names, *_BY_MOVING_ON)
    iterator.value.next_pos += -1 if backwards else 1
    known["next_pos"] = interpreter.wrap_const(iterator.value.next_pos)
    return pass_stack(item)


def shorten_for_iter(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a handler of FOR_ITER that calls the lookaside of ``next`` directly."""
    raised = interpreter.INTERPRETER_SIGNALS.EXCEPTION_RAISED

    @wraps(original)
    def for_iter_handler(inst: Any, /, stack: Any, inst_ptr: int, **kwargs: Any) -> Any:
        iterator = stack.getitem_wrapped(-1)
        if not is_wrapped(iterator, interpreter.SequenceIter, *_ITERATORS) or needs_every_step():
            return original(inst, stack=stack, inst_ptr=inst_ptr, **kwargs)
        names = wrap_globals(original)
        look_up_builtins(names, "next")
        item = interpreter.get_interpretercompilectx().lookaside(next, iterator)(iterator)
        if item is raised:
            context = interpreter.get_interpreterruntimectx()
            if not isinstance(context.curexc, StopIteration):
                return item
            context.curexc = None
            stack.append(interpreter.Py_NULL())  # as in Python 3.12, for the code after the loop
            return inst.arg
        stack.append(item)
        return None

    return for_iter_handler
