"""Binary operations of numbers and tensors, where Thunder interprets how Python chooses the method that computes."""

from __future__ import annotations

import operator
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any

from fusioncache.thunder_adapter.interpreter.steps import wants_every_step
from fusioncache.thunder_adapter.interpreter.wrapped import is_wrapped, look_up_builtins, wrap_globals

_NUMBERS = (bool, int, float, complex)
OPERATIONS: tuple[tuple[str, str, Callable[[Any, Any], Any]], ...] = (
    ("+", "add", operator.add),
    ("&", "and", operator.and_),
    ("//", "floordiv", operator.floordiv),
    ("<<", "lshift", operator.lshift),
    ("@", "matmul", operator.matmul),
    ("*", "mul", operator.mul),
    ("%", "mod", operator.mod),
    ("|", "or", operator.or_),
    ("**", "pow", operator.pow),
    (">>", "rshift", operator.rshift),
    ("-", "sub", operator.sub),
    ("/", "truediv", operator.truediv),
    ("^", "xor", operator.xor),
)
"""In the order of the numbers that instructions have for them. In place, these are higher by as many as there are."""


def shorten_binary_operation(original: Callable[..., Any]) -> Callable[..., Any]:
    """Computes with numbers at once, and calls the method of a tensor that Python would call."""
    from thunder.core import interpreter

    from fusioncache.thunder_adapter.api import TensorProxy

    raised = interpreter.INTERPRETER_SIGNALS.EXCEPTION_RAISED

    @wraps(original)
    def _binary_op(stack: Any, op: Any, a: Any, b: Any) -> Any:
        if not (is_wrapped(a, TensorProxy, *_NUMBERS) and is_wrapped(b, TensorProxy, *_NUMBERS)):
            return original(stack, op, a, b)
        if wants_every_step():
            return original(stack, op, a, b)
        names = wrap_globals(original)
        if is_wrapped(a, TensorProxy) or is_wrapped(b, TensorProxy):
            result = call_method_of_tensor(op.value, a, b, names)
        else:
            result = _compute(op.value, a.value, b.value)
            if result is None:
                return original(stack, op, a, b)
            look_up_builtins(names, "hasattr", "type", "getattr", "NotImplemented")
        if result is raised:
            return result
        stack.append(result)
        return None

    return _binary_op


def _compute(number: int, a: Any, b: Any) -> Any:
    """Computes with two numbers, or returns None where that raises an error, for which Thunder has its own words."""
    with suppress(Exception):
        return OPERATIONS[number % len(OPERATIONS)][2](a, b)
    return None


def call_method_of_tensor(number: int, a: Any, b: Any, names: Any) -> Any:
    """Returns what the first method returns, without its wrapper, that can compute this; or the signal of an error."""
    from thunder.core.interpreter import INTERPRETER_SIGNALS, _interpret_call, do_raise

    look_up_builtins(names, "hasattr", "type")
    for key, first, second in _list_methods(number, a, b):
        is_in_place, method = key.startswith("__i"), getattr(type(first.value), key, None)
        result = None
        if method is not None:
            look_up_builtins(names, "getattr")
            result = _interpret_call(method, first, second)
            if result is INTERPRETER_SIGNALS.EXCEPTION_RAISED:
                return result
        if (method is None) is is_in_place:
            look_up_builtins(names, "NotImplemented")
        if result is not None and result.value is not NotImplemented:
            return result.value
    look_up_builtins(names, "TypeError")
    symbol = OPERATIONS[number % len(OPERATIONS)][0] + "=" * (number // len(OPERATIONS))
    return do_raise(TypeError(f"unsupported operand type(s) for {symbol}: '{type(a.value)}' and '{type(b.value)}'"))


def _list_methods(number: int, a: Any, b: Any) -> list[tuple[str, Any, Any]]:
    """Lists the names of methods that Python calls for an operation, in its order, each with its arguments."""
    name = OPERATIONS[number % len(OPERATIONS)][1]
    calls = [(f"__{name}__", a, b), (f"__r{name}__", b, a)]
    if number >= len(OPERATIONS):
        calls.insert(0, (f"__i{name}__", a, b))
    return calls
