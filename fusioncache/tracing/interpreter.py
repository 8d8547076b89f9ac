"""Shorter ways to what Thunder's interpreter computes by detours.

Each public function takes a function of the interpreter's and returns one that does the same in fewer steps. Where the
shorter way does not apply, that calls the original.
The interpreter wraps every value with where it comes from; a subscript, ``len`` or ``in`` of a plain container ends in
a method for the wrapper, after some interpreted code that only finds that out.
"""

from __future__ import annotations

import _thread
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache, wraps
from queue import SimpleQueue
from types import CodeType, FrameType, ModuleType
from typing import Any

_MOST_CODE_OBJECTS = 4096


def shorten_globals(original: Callable[..., Any]) -> Callable[..., Any]:
    """Looks a global up in its dict, and a builtin in the dict in that, where Thunder interprets code that does so."""
    from thunder.core.interpreter import wrap_const

    @wraps(original)
    def globals_lookup(globals_dict: Any, name: Any) -> Any:
        if not _is_wrapped(globals_dict, dict) or not _is_wrapped(name, str):
            return original(globals_dict, name)
        if name.value in globals_dict.value:
            return _call_method("__getitem__", globals_dict, name)
        if type(globals_dict.value.get("__builtins__")) is dict and name.value in globals_dict.value["__builtins__"]:
            builtins = _call_method("__getitem__", globals_dict, wrap_const("__builtins__"))
            return _call_method("__getitem__", builtins, name)
        return original(globals_dict, name)

    return globals_lookup


def shorten_subscript(original: Callable[..., Any]) -> Callable[..., Any]:
    """Calls the method of a plain container at once, where Thunder interprets what Python does to find it."""
    from thunder.core.interpreter import INTERPRETER_SIGNALS, check_and_append

    @wraps(original)
    def binary_subscr_handler(inst: Any, /, stack: Any, **kwargs: Any) -> Any:
        key, container = stack.getitem_wrapped(-1), stack.getitem_wrapped(-2)
        if not (_is_wrapped(container, dict, list, tuple) and _is_wrapped(key, str, int)):
            return original(inst, stack=stack, **kwargs)
        del stack[-2:]
        result = _call_method("__getitem__", container, key)
        return result if result is INTERPRETER_SIGNALS.EXCEPTION_RAISED else check_and_append(stack, result)

    return binary_subscr_handler


def shorten_contains(original: Callable[..., Any]) -> Callable[..., Any]:
    """Calls the method of a plain dict at once that says whether it has a key."""

    @wraps(original)
    def contains_op_handler(inst: Any, /, stack: Any, **kwargs: Any) -> Any:
        container, key = stack.getitem_wrapped(-1), stack.getitem_wrapped(-2)
        if inst.arg == 1 or not (_is_wrapped(container, dict) and _is_wrapped(key, str, int)):
            return original(inst, stack=stack, **kwargs)
        del stack[-2:]
        stack.append(_call_method("__contains__", container, key))
        return None

    return contains_op_handler


def shorten_len(original: Callable[..., Any]) -> Callable[..., Any]:
    """Calls the method of a plain container at once that returns its length."""

    @wraps(original)
    def len_lookaside(obj: Any) -> Any:
        return _call_method("__len__", obj) if _is_wrapped(obj, dict, OrderedDict, list, tuple) else original(obj)

    return len_lookaside


def shorten_bool(original: Callable[..., Any]) -> Callable[..., Any]:
    """Asks a plain container for its length. ``torch.nn.Module`` looks into eight dicts of hooks in each call."""
    from thunder.core.interpreter import _interpret_call

    def is_not_zero(length: int) -> bool:
        return length != 0

    @wraps(original)
    def bool_lookaside(x: Any) -> Any:
        if not _is_wrapped(x, dict, OrderedDict, list, tuple):
            return original(x)
        return _interpret_call(is_not_zero, _call_method("__len__", x))

    return bool_lookaside


def cache_instructions(original: ModuleType) -> ModuleType:
    """Makes a copy of the module ``dis`` that decodes each code object once, as the same ones run again and again."""

    @lru_cache(maxsize=_MOST_CODE_OBJECTS)
    def get_instructions(code: Any) -> tuple[Any, ...]:
        return tuple(original.get_instructions(code))

    copy = ModuleType(original.__name__, original.__doc__)
    copy.__dict__.update(vars(original), get_instructions=get_instructions)
    return copy


def sleep_for_frame(original: Callable[..., Any]) -> Callable[..., Any]:
    """Sleeps until another thread has made a frame, where Thunder waits in a busy loop.

    Python lets the other thread run after 5 ms of such a loop only. Each exception that a model's code catches, as each
    ``for`` loop does at its end, costs that much. If the waiting thread sleeps, the other one runs at once.
    """

    @wraps(original)
    def get_or_make_python_frame(self: Any) -> Any:
        frames: SimpleQueue[Any] = SimpleQueue()
        # On a thread of its own, which is not given this frame, or what it makes would keep alive all that led here.
        _thread.start_new_thread(_put_frame, (frames, self.code, self.qualname, self.positions.lineno))
        frame = frames.get()
        if isinstance(frame, BaseException):
            raise frame
        return frame

    return get_or_make_python_frame


def _put_frame(frames: SimpleQueue[Any], code: CodeType, qualname: str, line: int | None) -> None:
    try:
        frames.put(_make_raising_frame(code, qualname, line))
    except BaseException as error:  # or the other thread waits for ever
        frames.put(error)


def _make_raising_frame(code: CodeType, qualname: str, line: int | None) -> FrameType:
    """Makes a frame that looks as if this code had raised an exception in this line."""

    def function() -> None:
        pass

    first = code.co_firstlineno
    lines_before = "\n" * ((first if line is None else line) - first)
    raising = compile(f"{lines_before}raise ValueError()", code.co_filename, "exec")
    function.__code__ = raising.replace(
        co_filename=code.co_filename, co_firstlineno=first, co_name=code.co_name, co_qualname=qualname
    )
    try:
        function()
    except ValueError as error:
        assert error.__traceback__ is not None and error.__traceback__.tb_next is not None
        return error.__traceback__.tb_next.tb_frame
    raise AssertionError("it raises")


def _is_wrapped(value: Any, *types: type) -> bool:
    """Tells whether this is the interpreter's wrapper around a value of exactly one of these types."""
    from thunder.core.interpreter import WrappedValue

    return isinstance(value, WrappedValue) and type(value.value) in types


def _call_method(name: str, container: Any, *args: Any) -> Any:
    """Calls what the interpreter has in place of a container's method."""
    from thunder.core.interpreter import get_interpretercompilectx

    method = getattr(type(container.value), name)
    return get_interpretercompilectx().lookaside(method, container, *args)(container, *args)
