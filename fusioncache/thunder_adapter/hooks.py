"""Hooks that report calls, lookups, comparisons and stores of Thunder's interpreter to the observers of a trace.

Each hook wraps a function of Thunder, or a shortcut for it. Without observers a trace is made as without the hook.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import partial, wraps
from typing import Any

INSTRUCTIONS = (
    *("STORE_DEREF", "DELETE_DEREF", "STORE_GLOBAL", "DELETE_GLOBAL", "BUILD_SET", "BUILD_MAP", "SET_ADD", "MAP_ADD"),
    *("SET_UPDATE", "DICT_UPDATE", "DICT_MERGE", "IS_OP", "COMPARE_OP", "CHECK_EXC_MATCH", "LOAD_CLOSURE"),
    "YIELD_VALUE",
)
"""Instructions that write variables of other code, call methods of objects, compare objects, pass a variable to an
inner function, or pass a value to the code that resumes a generator. All others with side effects call a method."""

MUTATING = frozenset({
    "__setitem__", "__delitem__", "append", "clear", "extend", "__iadd__", "__imul__", "insert", "pop", "remove",
    "reverse", "sort", "__init__", "__ior__", "popitem", "setdefault", "update", "move_to_end",
})  # fmt: skip
"""Methods of containers that change them."""

HASHING = frozenset({"BUILD_SET", "BUILD_MAP", "SET_ADD", "MAP_ADD", "SET_UPDATE", "DICT_UPDATE", "DICT_MERGE"})
"""Instructions that call methods of objects outside the interpreter, such as ``__hash__``."""

WITH_KEY = frozenset(["__contains__", "__getitem__", "__setitem__", "__delitem__", "get", "pop", "setdefault"])
"""Methods of dicts and sets that hash their first argument."""

_ITERATED_BY_PYTHON = (list, tuple, set, frozenset, dict, OrderedDict)
_KEYS = (str, int, float, bool, complex, bytes, type(None))


class Observer:
    """Base class of observers of the interpreter. No method does anything here."""

    def covers_trace(self) -> bool:
        """True if the trace so far depends only on recorded reads, and has no lasting side effects.

        An observer that returns True judges each event before it happens.
        """
        return False

    def see_call(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, is_opaque: bool) -> None:
        """Notes a call that is not interpreted, before it is made.

        Args:
            fn: the called function.
            args: its arguments, in the interpreter's wrappers; empty if a shortcut only asks for the function's
                lookaside.
            kwargs: its keyword arguments, likewise.
            is_opaque: whether the interpreter calls the function as it is, without a lookaside.
        """

    def replace_call(self, fn: Any) -> Callable[..., Any] | None:
        """Returns a callable that replaces the call of a module; None if the module is to be interpreted."""
        return None

    def see_function(self, function: Any) -> None:
        """Notes a function whose code is about to be interpreted."""

    def see_copied(self, first: tuple[int, int], names: Mapping[str, str], shift: int) -> None:
        """Notes that a block was copied from an interpreted block, and not interpreted itself.

        Args:
            first: the trace's name counter before and after the interpreted block.
            names: the names of tensors of that block, each with the name of the tensor that replaces it.
            shift: the difference of the name counter from that block to this one.
        """

    def see_global(self, namespace: Any, name: str) -> None:
        """Notes a name that is about to be looked up in a namespace, and then among the builtins."""

    def see_instruction(self, name: str, inst: Any, state: dict[str, Any]) -> None:
        """Notes one of ``INSTRUCTIONS`` with the interpreter's state, before it is executed."""


_observers: ContextVar[tuple[Observer, ...]] = ContextVar("fusioncache_observers", default=())
"""The observers of the trace that is being made in this context."""


@contextmanager
def assign[T](variable: ContextVar[T], value: T) -> Iterator[None]:
    """Sets a context variable while the body runs."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def while_set(variable: ContextVar[Any]) -> Callable[[Callable[..., Any]], Callable[[Callable[..., Any]], Any]]:
    """Returns a decorator for replacements of Thunder's functions that act only while a context variable is set.

    The decorated function is called with the value of the variable, the original function, and the arguments. Without a
    value the replacement calls the original.
    """

    def decorate(function: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
        @wraps(function)
        def make(original: Callable[..., Any]) -> Any:
            # Reading a function's annotations creates a dictionary in the function, once. Code that watches the
            # function would take that for a change, and the next key would compute all names again.
            @wraps(original, assigned=("__module__", "__name__", "__qualname__", "__doc__"))
            def replacement(*args: Any, **kwargs: Any) -> Any:
                value = variable.get()
                return original(*args, **kwargs) if value is None else function(value, original, *args, **kwargs)

            replacement.function = function  # type: ignore[attr-defined]  # keys name it: all have the same code
            return replacement

        return make

    return decorate


def observe(observer: Observer, *, first: bool = False) -> AbstractContextManager[None]:
    """Returns a context in which the interpreter's events in this thread are reported to an observer.

    Args:
        observer: the observer.
        first: whether it precedes the current observers, because they ask whether it covers the trace.
    """
    others = _observers.get()
    return assign(_observers, (observer, *others) if first else (*others, observer))


def notify_copied(first: tuple[int, int], names: Mapping[str, str], shift: int) -> None:
    """Notifies all observers that a block was copied: see ``Observer.see_copied``."""
    for observer in _observers.get():
        observer.see_copied(first, names, shift)


def is_covered() -> bool:
    """True if any observer covers the trace that is being made in this context."""
    return any(observer.covers_trace() for observer in _observers.get())


def watch_calls(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a hook around the interpreter's search for a lookaside: it reports calls, and may replace modules."""
    import torch
    from thunder.core.interpreter import _interpret_call, is_opaque

    @wraps(original)
    def general_jit_lookaside(fn: Any, *args: Any, **kwargs: Any) -> Any:
        observers, result = _observers.get(), original(fn, *args, **kwargs)
        if not observers:
            return result
        if isinstance(result, partial) and result.func is _interpret_call:
            return result  # the original behind a shortcut: observers see its steps as it is interpreted
        opaque = result is None and is_opaque(fn)
        if result is not None or opaque:
            for observer in observers:
                observer.see_call(fn, args, kwargs, is_opaque=opaque)
        elif isinstance(fn, torch.nn.Module):
            return next(filter(None, (observer.replace_call(fn) for observer in observers)), None)
        return result

    return general_jit_lookaside


def watch_functions(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a hook that reports each function that is interpreted."""

    @wraps(original)
    def _setup_frame_and_run_python_function(
        compilectx: Any, runtimectx: Any, wrapped_fn: Any, /, *args: Any, **kwargs: Any
    ) -> Any:
        for observer in _observers.get():
            observer.see_function(wrapped_fn.value)
        return original(compilectx, runtimectx, wrapped_fn, *args, **kwargs)

    return _setup_frame_and_run_python_function


def watch_globals(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a hook that reports each global name that is looked up."""

    @wraps(original)
    def globals_lookup(globals_dict: Any, name: Any) -> Any:
        for observer in _observers.get():
            observer.see_global(globals_dict.value, name.value)
        return original(globals_dict, name)

    return globals_lookup


def watch_instruction(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a hook around the handler of an instruction: it reports each execution."""

    @wraps(original)
    def handler(inst: Any, /, **state: Any) -> Any:
        for observer in _observers.get():
            observer.see_instruction(inst.opname, inst, state)
        return original(inst, **state)

    return handler


def name_instruction(inst: Any) -> str:
    """Returns the name of an instruction, or of one of Thunder's pseudo-instructions."""
    return getattr(inst, "opname", None) or str(inst.value)


def find_hashed(name: str, count: int, stack: Any) -> list[Any]:
    """Returns the objects that an instruction is about to hash: those on the stack, or the items of a container there.

    If the container iterates by code of its own, one plain ``object`` represents its items.
    """
    if name in ("BUILD_SET", "BUILD_MAP"):
        step = 1 if name == "BUILD_SET" else 2
        return [stack.getitem_wrapped(-step * (place + 1)).value for place in range(count)]
    if name in ("SET_ADD", "MAP_ADD"):
        return [stack.getitem_wrapped(-1 if name == "SET_ADD" else -2).value]
    taken = stack.getitem_wrapped(-1).value
    return list(taken) if has_type(taken, _ITERATED_BY_PYTHON) else [object()]


def has_type(value: Any, kinds: Iterable[type]) -> bool:
    """True if the class of a value is one of these, by identity: a metaclass may make it equal to any class."""
    own = type(value)
    return any(own is kind for kind in kinds)


def has_builtin_hash(value: Any) -> bool:
    """True if hashing a key calls no other code: a constant, a tuple of these, or a class with the default hash."""
    # The metaclass computes the hash of a class, in C unless it overrides ``__hash__``.
    if isinstance(value, type):
        return type(value).__hash__ is type.__hash__
    return has_type(value, _KEYS) or (type(value) is tuple and all(map(has_builtin_hash, value)))
