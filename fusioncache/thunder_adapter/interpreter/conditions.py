"""Conditions: whether to jump, and ``not``, told at once of plain values, where Thunder interprets how Python tells."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import wraps
from types import NoneType
from typing import Any

from fusioncache.thunder_adapter.interpreter.containers import measure
from fusioncache.thunder_adapter.interpreter.steps import wants_every_step
from fusioncache.thunder_adapter.interpreter.wrapped import is_wrapped, look_up_builtins, wrap_globals

"""The sources of what stands in for ``bool``."""

_PLAIN = (bool, int, float, complex, str, bytes, NoneType)
_CONTAINERS = (dict, OrderedDict, list, tuple)


def shorten_jump_if_true(original: Callable[..., Any]) -> Callable[..., Any]:
    """Jumps if a plain value is true."""
    tell = make_judge()

    @wraps(original)
    def pop_jump_if_true_handler(inst: Any, /, stack: Any, **kwargs: Any) -> Any:
        truth = tell(stack.getitem_wrapped(-1), True)
        if truth is None:
            return original(inst, stack=stack, **kwargs)
        if type(stack.pop_wrapped().value) is not bool:
            look_up_builtins(wrap_globals(original), "bool")
        return inst.arg if truth else None

    return pop_jump_if_true_handler


def shorten_jump_if_false(original: Callable[..., Any]) -> Callable[..., Any]:
    """Jumps if a plain value is false."""
    tell = make_judge()

    @wraps(original)
    def pop_jump_if_false_handler(inst: Any, /, stack: Any, **kwargs: Any) -> Any:
        truth = tell(stack.getitem_wrapped(-1), False)
        if truth is None:
            return original(inst, stack=stack, **kwargs)
        stack.pop_wrapped()
        return None if truth else inst.arg

    return pop_jump_if_false_handler


def shorten_not(original: Callable[..., Any]) -> Callable[..., Any]:
    """Negates the truth of a plain value."""
    tell = make_judge()

    @wraps(original)
    def unary_not_handler(inst: Any, /, stack: Any, **kwargs: Any) -> Any:
        truth = tell(stack.getitem_wrapped(-1), True)
        if truth is None:
            return original(inst, stack=stack, **kwargs)
        look_up_builtins(wrap_globals(original), "bool")
        stack.pop()  # which becomes an input of the result
        stack.append(not truth)
        return None

    return unary_not_handler


def make_judge() -> Callable[[Any, bool], bool | None]:
    """Makes a function that tells whether a wrapped value is true; None if Thunder has to find out.

    It is told whether Thunder would wrap the value anew, if nobody else keeps its wrapper, and then each of its items.
    """
    from thunder.core import interpreter, jit_ext

    usual = jit_ext._general_jit_lookaside_map[bool]
    in_turn = interpreter._default_lookaside_map[bool]

    def tell(value: Any, anew: bool) -> bool | None:
        if not is_wrapped(value, *_PLAIN, *_CONTAINERS):
            return None
        if wants_every_step() or interpreter.get_interpretercompilectx().lookaside(bool, value) is not usual:
            return None
        if type(value.value) is bool:
            return value.value  # type: ignore[no-any-return]
        if type(value.value) in _CONTAINERS:
            if value.value and anew:
                return None
            value.track_items()
        _look_up(value.value, wrap_globals(in_turn))
        return bool(value.value)

    return tell


def _look_up(value: Any, names: Any) -> None:
    """Looks up what Thunder does to find out whether a plain value is true."""
    look_up_builtins(names, "object", "getattr", "type")
    if hasattr(type(value), "__bool__"):
        look_up_builtins(names, "callable")
    else:
        look_up_builtins(names, "hasattr", "len", "isinstance", "int")


def shorten_bool(original: Callable[..., Any]) -> Callable[..., Any]:
    """Asks a plain container for its length. ``torch.nn.Module`` looks into eight dicts of hooks in each call."""
    from thunder.core.interpreter import _interpret_call

    def is_not_zero(length: int) -> bool:
        return length != 0

    @wraps(original)
    def bool_lookaside(x: Any) -> Any:
        if not is_wrapped(x, *_CONTAINERS):
            return original(x)
        names = wrap_globals(original)
        look_up_builtins(names, "object", "getattr", "type", "hasattr", "len")
        return _interpret_call(is_not_zero, measure(x, names))

    return bool_lookaside
