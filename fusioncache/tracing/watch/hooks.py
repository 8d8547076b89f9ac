"""Where the interpreter calls, looks up, compares and stores: each of these is told to the observers of a trace.

Each hook stands around what Thunder has there, or around another shortcut for it. A trace that nobody observes is made
as without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial, wraps
from typing import Any

from fusioncache.tracing.replacement import Replacement, digest_source

INSTRUCTIONS = {
    "STORE_DEREF": "a8a97561357dfcfd",
    "DELETE_DEREF": "add2e3861ee2af5f",
    "STORE_GLOBAL": "8bf9dbaf9a1a21a2",
    "DELETE_GLOBAL": "ecade40fae9d3ed5",
    "BUILD_SET": "417ef54ebe9374b1",
    "BUILD_MAP": "a1363bfac0d1375a",
    "SET_ADD": "2d59db7c838d75f7",
    "MAP_ADD": "ba3c8d7b2bba5e0a",
    "SET_UPDATE": "554402222a7190dd",
    "DICT_UPDATE": "74652c0ccecf23c0",
    "DICT_MERGE": "2f676fdacdbc147e",
    "IS_OP": "033ce7681af1a13f",
    "COMPARE_OP": "0f27f936c0982dff",
    "CHECK_EXC_MATCH": "b8412a3ab4ca6a58",
    "LOAD_CLOSURE": "fda9a5579e113699",
    "YIELD_VALUE": "de9121592436d103",
}
"""Instructions that change variables of other code, let objects answer for themselves, or tell one from another, hand a
variable to an inner function, or a value to whoever resumes a generator. Others that change something call a method.

Each with the source of what executes it.
"""

_FOLDER = __file__.rpartition("watch")[0]


class Observer:
    """Whoever is told what the interpreter does. Nothing of it does anything here."""

    def vouches(self) -> bool:
        """Tells whether all of the trace so far depends on nothing but what was read, and changes nothing that lasts.

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

    def see_written(self, first: tuple[int, int], names: Mapping[str, str], shift: int) -> None:
        """Notes that what was done between two counts of names was done again for other tensors, without a look at it.

        Args:
            first: how many names had been counted off before and after it was done for the first time.
            names: of tensors there, each with that of the tensor that took its place.
            shift: how many names were counted off from the one time to the other.
        """

    def see_global(self, namespace: Any, name: str) -> None:
        """Notes a name that is about to be looked up in a namespace, and then among the builtins."""

    def see_instruction(self, name: str, inst: Any, state: dict[str, Any]) -> None:
        """Notes one of ``INSTRUCTIONS`` with the interpreter's state, before it is executed."""


_observers: ContextVar[tuple[Observer, ...]] = ContextVar("fusioncache_observers", default=())
"""Who observes the trace that is being made here."""


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


def tell_written(first: tuple[int, int], names: Mapping[str, str], shift: int) -> None:
    """Tells all observers that something was done again: see ``Observer.see_written``."""
    for observer in _observers.get():
        observer.see_written(first, names, shift)


def is_vouched_for() -> bool:
    """Tells whether any observer vouches for the trace that is being made here."""
    return any(observer.vouches() for observer in _observers.get())


def replacements() -> tuple[Replacement, ...]:
    """Returns what this group of hooks replaces.

    Raises:
        LookupError: if any of it is not the known one. Each part relies on the others.
    """
    from thunder.core import interpreter, jit_ext

    handlers = interpreter._default_opcode_handler_map
    if digest_own(interpreter._call_dispatch) != "02d9d2ff994cde88":
        raise LookupError("Thunder calls modules in another way")
    return (
        know(jit_ext, "general_jit_lookaside", "79fb949b1b6e2756", watch_calls),
        know(interpreter, "_setup_frame_and_run_python_function", "045b9af163819fc0", watch_functions),
        know(interpreter, "globals_lookup", "7cc0d44bcf43854c", watch_globals),
        *(know(handlers, name, source, watch_instruction(name)) for name, source in INSTRUCTIONS.items()),
    )


def are_installed() -> bool:
    """Tells whether observers are told of everything."""
    from thunder.core import interpreter, jit_ext

    handlers = interpreter._default_opcode_handler_map
    places = (
        jit_ext.general_jit_lookaside,
        interpreter._setup_frame_and_run_python_function,
        interpreter.globals_lookup,
        *(handlers.get(name) for name in INSTRUCTIONS),
    )
    return all(getattr(each, "tells_observers", False) for each in places)


def know(holder: Any, key: Any, source: str, make: Callable[[Any], Any]) -> Replacement:
    """Returns what stands around a function of Thunder's, or around another shortcut for it.

    Raises:
        LookupError: if the function is not the one of which these are the first digits of the hash of the source.
    """
    replacement = Replacement(holder, key, None, make, everywhere=not isinstance(holder, dict | type), around=True)
    if digest_own(replacement.get()) != source:
        raise LookupError(f"Thunder's own {key} is not the known one")
    return replacement


def digest_own(function: Any) -> str:
    """Returns the first digits of the hash of the source of Thunder's own function behind shortcuts and hooks."""
    while function.__code__.co_filename.startswith(_FOLDER) and hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return digest_source(function)


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
