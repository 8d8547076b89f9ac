"""Globals, subscripts, ``in`` and ``len`` of plain containers, without interpreting how Python finds them.

The interpreter wraps every value with where it comes from; a subscript, ``len`` or ``in`` of a plain container ends in
a method for the wrapper, after some interpreted code that only finds that out.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import wraps
from typing import Any

from fusioncache.thunder_adapter.interpreter.wrapped import call_method, is_wrapped, look_up_builtins, wrap_globals

_SIZED = (dict, OrderedDict, list, tuple)


def shorten_globals(original: Callable[..., Any]) -> Callable[..., Any]:
    """Looks a global up in its dict, and a builtin in the dict in that, where Thunder interprets code that does so."""
    from thunder.core.interpreter import wrap_const

    @wraps(original)
    def globals_lookup(globals_dict: Any, name: Any) -> Any:
        if not is_wrapped(globals_dict, dict) or not is_wrapped(name, str):
            return original(globals_dict, name)
        if name.value in globals_dict.value:
            return call_method("__getitem__", globals_dict, name)
        if type(globals_dict.value.get("__builtins__")) is dict and name.value in globals_dict.value["__builtins__"]:
            builtins = call_method("__getitem__", globals_dict, wrap_const("__builtins__"))
            return call_method("__getitem__", builtins, name)
        return original(globals_dict, name)

    return globals_lookup


def shorten_subscript(original: Callable[..., Any]) -> Callable[..., Any]:
    """Calls the method of a plain container at once, where Thunder interprets what Python does to find it."""
    from thunder.core.interpreter import INTERPRETER_SIGNALS, check_and_append

    @wraps(original)
    def binary_subscr_handler(inst: Any, /, stack: Any, **kwargs: Any) -> Any:
        key, container = stack.getitem_wrapped(-1), stack.getitem_wrapped(-2)
        if not (is_wrapped(container, dict, list, tuple) and is_wrapped(key, str, int)):
            return original(inst, stack=stack, **kwargs)
        del stack[-2:]
        result = call_method("__getitem__", container, key)
        return result if result is INTERPRETER_SIGNALS.EXCEPTION_RAISED else check_and_append(stack, result)

    return binary_subscr_handler


def shorten_contains(original: Callable[..., Any]) -> Callable[..., Any]:
    """Calls the method of a plain dict at once that says whether it has a key."""

    @wraps(original)
    def contains_op_handler(inst: Any, /, stack: Any, **kwargs: Any) -> Any:
        container, key = stack.getitem_wrapped(-1), stack.getitem_wrapped(-2)
        if inst.arg == 1 or not (is_wrapped(container, dict) and is_wrapped(key, str, int)):
            return original(inst, stack=stack, **kwargs)
        del stack[-2:]
        names = wrap_globals(original)
        look_up_builtins(names, "hasattr", "getattr")
        stack.append(call_method("__contains__", container, key))
        return None

    return contains_op_handler


def shorten_len(original: Callable[..., Any]) -> Callable[..., Any]:
    """Calls the method of a plain container at once that returns its length."""

    @wraps(original)
    def len_lookaside(obj: Any) -> Any:
        return measure(obj, wrap_globals(original)) if is_wrapped(obj, *_SIZED) else original(obj)

    return len_lookaside


def measure(container: Any, names: Any) -> Any:
    """Returns the length of a plain container, with what Thunder looks up to find it."""
    look_up_builtins(names, "hasattr", "getattr")
    length = call_method("__len__", container)
    look_up_builtins(names, "isinstance", "int")
    return length
