"""Thunder's tracing with four detours taken out: the same traces, in a fraction of the time.

Thunder interprets the bytecode of a model, and looks up whatever that uses through interpreted code of its own. For one
layer of litgpt's Llama it runs 11,000 frames so, of which 10,000 only subscript a dict of globals or builtins.
Each replacement here does what the original comes down to, and stands in only for source that it was written for.
"""

from __future__ import annotations

import dis
import hashlib
import inspect
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, wraps
from types import ModuleType
from typing import Any

logger = logging.getLogger("fusioncache")

_MOST_CODE_OBJECTS = 4096
_SWITCH_SECONDS = 1e-5


@dataclass(frozen=True, slots=True)
class Replacement:
    """A function of Thunder's interpreter and what takes its place.

    Attributes:
        original: the function as Thunder has it.
        source: SHA-256 of the source that the replacement was written for, its first 16 digits.
        make: the replacement, given the original.
        put: stores the replacement where Thunder looks the function up.
    """

    original: Callable[..., Any]
    source: str
    make: Callable[[Callable[..., Any]], Callable[..., Any]]
    put: Callable[[Callable[..., Any]], None]

    def known(self) -> bool:
        """Whether Thunder's function is the one that the replacement was written for."""
        try:
            return digest(self.original) == self.source
        except OSError:  # no source
            return False


def install() -> None:
    """Lets Thunder trace faster from now on, in this process. A second call does nothing."""
    for replacement in replacements():
        if hasattr(replacement.original, "__wrapped__"):
            continue
        if replacement.known():
            replacement.put(replacement.make(replacement.original))
        else:
            logger.info("tracing keeps Thunder's own %s: it is not the known one", replacement.original.__qualname__)


def replacements() -> tuple[Replacement, ...]:
    """What ``install`` replaces. The originals are those of now: replacements, if they are in place."""
    from thunder.core import interpreter

    handlers, frame = interpreter._default_opcode_handler_map, interpreter.InterpreterFrame
    instructions = interpreter.dis.get_instructions

    def store_lookup(function: Any) -> None:
        interpreter.globals_lookup = function

    def store_handler(function: Any) -> None:
        handlers["BINARY_SUBSCR"] = function

    def store_instructions(function: Any) -> None:
        interpreter.dis = _like(dis, get_instructions=function)

    def store_frame(function: Any) -> None:
        frame.get_or_make_python_frame = function

    lookup = interpreter.globals_lookup
    return (
        Replacement(lookup, "7cc0d44bcf43854c", _direct_globals, store_lookup),
        Replacement(handlers["BINARY_SUBSCR"], "b2e3186dfb932905", _direct_subscript, store_handler),
        # Of Python's own library, where any version will do.
        Replacement(instructions, digest(instructions), _decoded_once, store_instructions),
        Replacement(frame.get_or_make_python_frame, "5b5ddf0171f34fb9", _without_spinning, store_frame),
    )


def digest(function: Callable[..., Any]) -> str:
    """Identifies the source of a function."""
    return hashlib.sha256(inspect.getsource(inspect.unwrap(function)).encode()).hexdigest()[:16]


def _direct_globals(original: Callable[..., Any]) -> Callable[..., Any]:
    """A global is an item of a dict, a builtin an item of an item of it: no need to interpret subscripts for that."""
    from thunder.core.interpreter import wrap_const

    @wraps(original)
    def globals_lookup(globals_dict: Any, name: Any) -> Any:
        if not _is_wrapped(globals_dict, dict) or not _is_wrapped(name, str):
            return original(globals_dict, name)
        if name.value in globals_dict.value:
            return _item(globals_dict, name)
        if type(globals_dict.value.get("__builtins__")) is dict and name.value in globals_dict.value["__builtins__"]:
            return _item(_item(globals_dict, wrap_const("__builtins__")), name)
        return original(globals_dict, name)

    return globals_lookup


def _direct_subscript(original: Callable[..., Any]) -> Callable[..., Any]:
    """A subscript of a plain container ends at the container's own method: no need to interpret the way there."""
    from thunder.core.interpreter import INTERPRETER_SIGNALS, check_and_append

    @wraps(original)
    def binary_subscr_handler(inst: Any, /, stack: Any, **kwargs: Any) -> Any:
        key, container = stack.getitem_wrapped(-1), stack.getitem_wrapped(-2)
        if not (_is_wrapped(container, dict, list, tuple) and _is_wrapped(key, str, int)):
            return original(inst, stack=stack, **kwargs)
        del stack[-2:]
        result = _item(container, key)
        return result if result is INTERPRETER_SIGNALS.EXCEPTION_RAISED else check_and_append(stack, result)

    return binary_subscr_handler


def _decoded_once(original: Callable[..., Any]) -> Callable[..., Any]:
    """The same code objects run again and again."""

    @lru_cache(maxsize=_MOST_CODE_OBJECTS)
    @wraps(original)
    def get_instructions(code: Any) -> tuple[Any, ...]:
        return tuple(original(code))

    return get_instructions


def _without_spinning(original: Callable[..., Any]) -> Callable[..., Any]:
    """Thunder waits in a busy loop for a thread that makes a frame; Python would let that thread run after 5 ms only.

    Exceptions that a model's code catches, as each ``for`` loop does at its end, cost that much each.
    """

    @wraps(original)
    def get_or_make_python_frame(self: Any) -> Any:
        interval = sys.getswitchinterval()
        sys.setswitchinterval(min(interval, _SWITCH_SECONDS))
        try:
            return original(self)
        finally:
            sys.setswitchinterval(interval)

    return get_or_make_python_frame


def _is_wrapped(value: Any, *types: type) -> bool:
    """Whether this is the interpreter's wrapper around a value of exactly one of these types."""
    from thunder.core.interpreter import WrappedValue

    return isinstance(value, WrappedValue) and type(value.value) in types


def _item(container: Any, key: Any) -> Any:
    from thunder.core.interpreter import get_interpretercompilectx

    getitem = type(container.value).__getitem__
    return get_interpretercompilectx().lookaside(getitem, container, key)(container, key)


def _like(module: ModuleType, **changes: Any) -> ModuleType:
    copy = ModuleType(module.__name__, module.__doc__)
    copy.__dict__.update(vars(module))
    copy.__dict__.update(changes)
    return copy
