"""Iteration: the next item of plain containers and of Python's iterators, without interpreting how it is asked for.

Thunder writes the iterator of a list in Python, and interprets it: for each item, three frames and two assignments.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import GeneratorType
from typing import Any

from fusioncache.thunder_adapter.shortcuts.values import (
    call_method,
    is_wrapped,
    look_up_builtins,
    pass_stack,
    wants_every_step,
    wrap_globals,
)

_BUILT_IN = tuple(map(type, map(iter, (range(0), {}, set()))))
_ITERATORS: tuple[Any, ...] = (GeneratorType, *_BUILT_IN, zip, map, filter, enumerate)
_ITERABLES: tuple[Any, ...] = (*_ITERATORS, range, set, frozenset)
_BY_MOVING_ON = ("hasattr", "type", "NotImplemented", "getattr", "setattr")
_BY_UNPACKING = ("hasattr", "setattr", "len", "getattr", "isinstance", "int", "StopIteration")
"""The builtins that Thunder's interpreted iterator looks up to add to a number and set an attribute."""


def shorten_sequence_iter(original: Callable[..., Any]) -> Callable[..., Any]:
    """Makes the iterator of a plain list or tuple at once, where Thunder interprets its ``__init__``."""
    from thunder.core import interpreter
    from thunder.core.interpreter import SequenceIter, wrap_const

    @wraps(original)
    def __iter__(self: Any) -> Any:
        if not is_wrapped(self, list, tuple) or wants_every_step():
            return original(self)
        self.track_items()
        look_up_builtins(wrap_globals(original), "setattr")
        arguments = interpreter.wrap_args((wrap_const(SequenceIter), self))
        inputs = [each.provenance for each in (wrap_const(object.__new__), arguments, wrap_const({}))]
        made = interpreter.ProvenanceRecord(interpreter.PseudoInst.OPAQUE, inputs=inputs)
        iterator = interpreter.wrap(SequenceIter(self.value), provenance=made)
        iterator.attribute_wrappers.update(s=self, next_pos=wrap_const(0), is_reversed=wrap_const(False))
        return iterator

    return __iter__


def shorten_iter(original: Callable[..., Any]) -> Callable[..., Any]:
    """Calls the ``__iter__`` of a plain container, or of one of Python's iterators, at once."""
    from thunder.core.interpreter import SequenceIter, _interpret_call

    @wraps(original)
    def _iter_lookaside(obj: Any, *sentinel: Any) -> Any:
        if sentinel or wants_every_step():
            return original(obj, *sentinel)
        if not is_wrapped(obj, list, tuple, SequenceIter, *_ITERABLES):
            return original(obj)
        names = wrap_globals(original)
        look_up_builtins(names, "hasattr")
        if is_wrapped(obj, SequenceIter):
            return obj
        if is_wrapped(obj, list, tuple):
            return call_method("__iter__", obj)
        return _interpret_call(type(obj.value).__iter__, obj)

    return _iter_lookaside


def shorten_next(original: Callable[..., Any]) -> Callable[..., Any]:
    """Takes the next item of the iterator of a plain list or tuple, or calls the ``__next__`` of one of Python's."""
    from thunder.core.interpreter import (
        INTERPRETER_SIGNALS,
        MappingKeysIterator,
        SequenceIter,
        _interpret_call,
        get_interpreterruntimectx,
    )

    @wraps(original)
    def _next_lookaside(iterator: Any, *default: Any) -> Any:
        if len(default) > 1 or wants_every_step():
            return original(iterator, *default)
        names = wrap_globals(original)
        if is_wrapped(iterator, SequenceIter) and _is_plain(iterator):
            item = _take(iterator, names)
        elif is_wrapped(iterator, MappingKeysIterator, *_ITERATORS):
            item = pass_stack(_interpret_call(type(iterator.value).__next__, iterator))
        else:
            return original(iterator, *default)
        if item is not INTERPRETER_SIGNALS.EXCEPTION_RAISED or not default:
            return item
        return default[0] if isinstance(get_interpreterruntimectx().curexc, StopIteration) else item

    return _next_lookaside


def _is_plain(iterator: Any) -> bool:
    """Returns whether this iterates over a plain list or tuple, and is as it was made or moved on."""
    known = iterator.attribute_wrappers
    if not {"s", "next_pos", "is_reversed"} <= known.keys() or not is_wrapped(known["s"], list, tuple):
        return False
    return is_wrapped(known["next_pos"], int) and known["next_pos"].value == iterator.value.next_pos


def _take(iterator: Any, names: Any) -> Any:
    """Returns the next item, or the signal that there is none, and moves on."""
    from thunder.core.interpreter import do_raise, wrap_const

    known = iterator.attribute_wrappers
    sequence, position = known["s"], known["next_pos"]
    sequence.track_items()
    backwards = known["is_reversed"].value
    if not backwards:
        look_up_builtins(names, "len", "hasattr", "getattr", "isinstance", "int")
    if position.value < 0 if backwards else position.value >= len(sequence.value):
        look_up_builtins(names, "StopIteration")
        return do_raise(StopIteration())
    item = call_method("__getitem__", sequence, position)
    look_up_builtins(names, *_BY_MOVING_ON)
    iterator.value.next_pos += -1 if backwards else 1
    known["next_pos"] = wrap_const(iterator.value.next_pos)
    return pass_stack(item)


def shorten_for_iter(original: Callable[..., Any]) -> Callable[..., Any]:
    """Calls at once what stands in for ``next``."""
    from thunder.core import interpreter

    raised = interpreter.INTERPRETER_SIGNALS.EXCEPTION_RAISED
    iterators = (interpreter.SequenceIter, interpreter.MappingKeysIterator, *_ITERATORS)

    @wraps(original)
    def for_iter_handler(inst: Any, /, stack: Any, inst_ptr: int, **kwargs: Any) -> Any:
        iterator = stack.getitem_wrapped(-1)
        if not is_wrapped(iterator, *iterators) or wants_every_step():
            return original(inst, stack=stack, inst_ptr=inst_ptr, **kwargs)
        names = wrap_globals(original)
        look_up_builtins(names, "next")
        item = interpreter.get_interpretercompilectx().lookaside(next, iterator)(iterator)
        if item is raised:
            context = interpreter.get_interpreterruntimectx()
            if not isinstance(context.curexc, StopIteration):
                return item
            context.curexc = None
            stack.append(interpreter.Py_NULL())  # as Python 3.12 has it, for what comes after the loop
            return inst.arg
        stack.append(item)
        return None

    return for_iter_handler


def shorten_unpack_sequence(original: Callable[..., Any]) -> Callable[..., Any]:
    """Takes the items of a plain list or tuple that has as many as are asked for."""
    from thunder.core.interpreter import wrap_const

    @wraps(original)
    def unpack_sequence_handler(inst: Any, /, stack: Any, **kwargs: Any) -> Any:
        sequence = stack.getitem_wrapped(-1)
        if not is_wrapped(sequence, list, tuple) or len(sequence.value) != inst.arg or wants_every_step():
            return original(inst, stack=stack, **kwargs)
        stack.pop_wrapped()
        sequence.track_items()
        look_up_builtins(wrap_globals(original), *_BY_UNPACKING, *(_BY_MOVING_ON if inst.arg else ()))
        positions = map(wrap_const, range(inst.arg))
        for item in [pass_stack(call_method("__getitem__", sequence, each)) for each in positions][::-1]:
            stack.append(item)
        return None

    return unpack_sequence_handler
