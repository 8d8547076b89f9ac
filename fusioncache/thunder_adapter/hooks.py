"""Where the interpreter calls, looks up, compares and stores: each of these is told to the observers of a trace.

Each hook stands around what Thunder has there, or around another shortcut for it. A trace that is not observed is made
as without it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial, wraps
from typing import Any

INSTRUCTIONS = (
    *("STORE_DEREF", "DELETE_DEREF", "STORE_GLOBAL", "DELETE_GLOBAL", "BUILD_SET", "BUILD_MAP", "SET_ADD", "MAP_ADD"),
    *("SET_UPDATE", "DICT_UPDATE", "DICT_MERGE", "IS_OP", "COMPARE_OP", "CHECK_EXC_MATCH", "LOAD_CLOSURE"),
    "YIELD_VALUE",
)
"""Instructions that change variables of other code, call methods of objects, compare objects, pass a variable to an
inner function, or a value to the code that resumes a generator. Others that change something call a method."""

MUTATING = frozenset({
    "__setitem__", "__delitem__", "append", "clear", "extend", "__iadd__", "__imul__", "insert", "pop", "remove",
    "reverse", "sort", "__init__", "__ior__", "popitem", "setdefault", "update", "move_to_end",
})  # fmt: skip
"""Methods of containers that change them."""

HASHING = frozenset({"BUILD_SET", "BUILD_MAP", "SET_ADD", "MAP_ADD", "SET_UPDATE", "DICT_UPDATE", "DICT_MERGE"})
"""Instructions that let objects answer questions without the interpreter, as to their hash."""

COMPARISONS = frozenset({"IS_OP", "COMPARE_OP"})
"""Instructions that tell one object from another."""

_ITERATED_BY_PYTHON = (list, tuple, set, frozenset, dict, OrderedDict)
_KEYS = (str, int, float, bool, complex, bytes, type(None))


class Observer:
    """Is told what the interpreter does. No method does anything here."""

    def covers_trace(self) -> bool:
        """Returns whether the trace so far depends only on what was read, and changes nothing that lasts.

        An observer that says so judges everything that it is told of, before it happens.
        """
        return False

    def see_call(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, is_opaque: bool) -> None:
        """Notes a call that is not interpreted, before it is made.

        Args:
            fn: what is called.
            args: what it is called with, in the interpreter's wrappers; nothing if a shortcut asks only what stands in
                for the function.
            kwargs: and by keyword.
            is_opaque: whether the interpreter simply calls it.
        """

    def replace_call(self, fn: Any) -> Callable[..., Any] | None:
        """Returns what to call in place of a module that would be interpreted; None to have it interpreted."""
        return None

    def see_function(self, function: Any) -> None:
        """Notes a function whose code is about to be interpreted."""

    def see_copied(self, first: tuple[int, int], names: Mapping[str, str], shift: int) -> None:
        """Notes that a block was copied from another one, without being interpreted.

        Args:
            first: how many names the trace had counted before and after the block that was interpreted.
            names: of tensors of that block, each with the name of the tensor that took its place.
            shift: how many names the trace counted from that block to this one.
        """

    def see_global(self, namespace: Any, name: str) -> None:
        """Notes a name that is about to be looked up in a namespace, and then among the builtins."""

    def see_instruction(self, name: str, inst: Any, state: dict[str, Any]) -> None:
        """Notes one of ``INSTRUCTIONS`` with the interpreter's state, before it is executed."""


_observers: ContextVar[tuple[Observer, ...]] = ContextVar("fusioncache_observers", default=())
"""The observers of the trace that is being made here."""


@contextmanager
def observe(observer: Observer, *, first: bool = False) -> Iterator[None]:
    """Tells an observer what the interpreter does meanwhile in this thread.

    Args:
        observer: is told.
        first: whether before those that are told already, as one that they ask for its judgement.
    """
    others = _observers.get()
    token = _observers.set((observer, *others) if first else (*others, observer))
    try:
        yield
    finally:
        _observers.reset(token)


def tell_copied(first: tuple[int, int], names: Mapping[str, str], shift: int) -> None:
    """Tells all observers that a block was copied: see ``Observer.see_copied``."""
    for observer in _observers.get():
        observer.see_copied(first, names, shift)


def is_covered() -> bool:
    """Returns whether any observer covers the trace that is being made here."""
    return any(observer.covers_trace() for observer in _observers.get())


def are_installed() -> bool:
    """Returns whether observers are told of everything."""
    from thunder.core import interpreter, jit_ext

    handlers = interpreter._default_opcode_handler_map
    places = (
        jit_ext.general_jit_lookaside,
        interpreter._setup_frame_and_run_python_function,
        interpreter.globals_lookup,
        *(handlers.get(name) for name in INSTRUCTIONS),
    )
    return all(getattr(each, "tells_observers", False) for each in places)


def watch_calls(original: Callable[..., Any]) -> Callable[..., Any]:
    """Stands where the interpreter asks what to do in place of interpreting a call."""
    import torch
    from thunder.core.interpreter import _interpret_call, is_opaque

    @wraps(original)
    def general_jit_lookaside(fn: Any, *args: Any, **kwargs: Any) -> Any:
        observers, result = _observers.get(), original(fn, *args, **kwargs)
        if not observers:
            return result
        if isinstance(result, partial) and result.func is _interpret_call:
            return result  # a shortcut's own function: what it does is seen as it is interpreted
        opaque = result is None and is_opaque(fn)
        if result is not None or opaque:
            for observer in observers:
                observer.see_call(fn, args, kwargs, is_opaque=opaque)
        elif isinstance(fn, torch.nn.Module):
            return next(filter(None, (observer.replace_call(fn) for observer in observers)), None)
        return result

    return _mark(general_jit_lookaside)


def watch_functions(original: Callable[..., Any]) -> Callable[..., Any]:
    """Tells of each function that is interpreted."""

    @wraps(original)
    def _setup_frame_and_run_python_function(
        compilectx: Any, runtimectx: Any, wrapped_fn: Any, /, *args: Any, **kwargs: Any
    ) -> Any:
        for observer in _observers.get():
            observer.see_function(wrapped_fn.value)
        return original(compilectx, runtimectx, wrapped_fn, *args, **kwargs)

    return _mark(_setup_frame_and_run_python_function)


def watch_globals(original: Callable[..., Any]) -> Callable[..., Any]:
    """Tells of each name that is looked up in a namespace."""

    @wraps(original)
    def globals_lookup(globals_dict: Any, name: Any) -> Any:
        for observer in _observers.get():
            observer.see_global(globals_dict.value, name.value)
        return original(globals_dict, name)

    return _mark(globals_lookup)


def watch_instruction(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Tells of an instruction."""

    def watch(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def handler(inst: Any, /, **state: Any) -> Any:
            for observer in _observers.get():
                observer.see_instruction(name, inst, state)
            return original(inst, **state)

        return _mark(handler)

    return watch


def _mark(hook: Callable[..., Any]) -> Callable[..., Any]:
    hook.tells_observers = True  # type: ignore[attr-defined]  # whatever stands around it has that as well
    return hook


def is_own_cell(name: str, inst: Any, code: Any) -> bool:
    """Returns whether an instruction changes a variable of a closure that belongs to the function itself."""
    return name.endswith("_DEREF") and inst.argval in code.co_cellvars


def find_hashed(name: str, count: int, stack: Any) -> list[Any]:
    """Returns what an instruction is about to take from the stack and to use as a key, or the keys of it."""
    if name in ("BUILD_SET", "BUILD_MAP"):
        step = 1 if name == "BUILD_SET" else 2
        return [stack.getitem_wrapped(-step * (place + 1)).value for place in range(count)]
    if name in ("SET_ADD", "MAP_ADD"):
        return [stack.getitem_wrapped(-1 if name == "SET_ADD" else -2).value]
    taken = stack.getitem_wrapped(-1).value
    return list(taken) if has_type(taken, _ITERATED_BY_PYTHON) else [object()]


def has_type(value: Any, kinds: Iterable[type]) -> bool:
    """Returns whether the very class of a value is one of these: its metaclass may say that it is equal to any."""
    own = type(value)
    return any(own is kind for kind in kinds)


def is_hashed_alone(value: Any) -> bool:
    """Returns whether a key is one of Python's constants, which asks nothing else for a hash."""
    # The hash of a class is that of its metaclass, which Python has in C where it is not overridden.
    if isinstance(value, type):
        return type(value).__hash__ is type.__hash__
    return has_type(value, _KEYS) or (type(value) is tuple and all(map(is_hashed_alone, value)))
