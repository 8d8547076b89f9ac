"""Blocks of a model that are alike, interpreted until one comes out as foretold, and from then on written out."""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any

from fusioncache.tracing.layers.purity import is_internal
from fusioncache.tracing.layers.refusal import Conflict
from fusioncache.tracing.layers.session import CURRENT, Outcome, Session
from fusioncache.tracing.layers.surroundings import find_wrapper
from fusioncache.tracing.replacement import Replacement, digest_source

logger = logging.getLogger("fusioncache")

OUTCOMES: deque[Outcome] = deque(maxlen=16)
"""What became of the blocks of the models that were traced last in this process."""

_STORES = {
    "STORE_ATTR": (1, "118802b9896615e0"),
    "DELETE_ATTR": (1, "f6e4b3acdb376123"),
    "STORE_SUBSCR": (2, "1e78f56fbc334385"),
    "DELETE_SUBSCR": (2, "891a819224a61d92"),
    "STORE_SLICE": (3, "0d226ac20b3f18d4"),
    "STORE_DEREF": (0, "a8a97561357dfcfd"),
    "DELETE_DEREF": (0, "add2e3861ee2af5f"),
    "STORE_GLOBAL": (0, "8bf9dbaf9a1a21a2"),
    "DELETE_GLOBAL": (0, "ecade40fae9d3ed5"),
    "STORE_NAME": (0, "f72f8dc6ece39ee5"),
    "DELETE_NAME": (0, "8477cf216f58e607"),
    "IMPORT_NAME": (0, "bcbb0dc5de84ea74"),
}
"""Instructions that change what other code can see: where on the stack the object is, or 0, and their source."""
_HASHING = {
    "BUILD_SET": "417ef54ebe9374b1",
    "BUILD_MAP": "a1363bfac0d1375a",
    "SET_ADD": "2d59db7c838d75f7",
    "MAP_ADD": "ba3c8d7b2bba5e0a",
    "SET_UPDATE": "554402222a7190dd",
    "DICT_UPDATE": "74652c0ccecf23c0",
    "DICT_MERGE": "2f676fdacdbc147e",
}
"""Instructions that let objects answer questions without the interpreter, as to their hash, and their source."""
_KEYS = (str, int, float, bool, complex, bytes, type(None))
_COMPARISONS = {"IS_OP": "033ce7681af1a13f", "COMPARE_OP": "0f27f936c0982dff"}
"""Instructions that tell one object from another, and their source."""


def replacements() -> tuple[Replacement, ...]:
    """Returns what this group of shortcuts replaces.

    Raises:
        LookupError: if any of it is not the known one. Each part relies on the others.
    """
    from thunder.core import interpreter, jit_ext

    handlers, wrapped = interpreter._default_opcode_handler_map, interpreter.INTERPRETER_CALLBACKS.WRAP_CALLBACK
    if _digest_own(interpreter._call_dispatch) != "02d9d2ff994cde88":
        raise LookupError("Thunder calls modules in another way")
    return (
        _know(jit_ext, "thunder_general_jit", "d808796e9c491393", watch_trace),
        _know(jit_ext, "general_jit_lookaside", "79fb949b1b6e2756", watch_calls),
        _know(jit_ext.general_jit_callbacks, wrapped, "25a24e407235a4ed", watch_wrappers),
        _know(jit_ext.JitCtx, "proxify", "89be9c1c26e0830f", watch_reads),
        *(_know(handlers, name, source, watch_store(name)) for name, (_, source) in _STORES.items()),
        *(_know(handlers, name, source, watch_hashing(name)) for name, source in _HASHING.items()),
        *(_know(handlers, name, source, watch_comparison(name)) for name, source in _COMPARISONS.items()),
    )


def _know(holder: Any, key: Any, source: str, make: Callable[[Any], Any]) -> Replacement:
    """Returns what stands around a function of Thunder's, or around another shortcut for it."""
    replacement = Replacement(holder, key, None, make, everywhere=not isinstance(holder, dict | type), around=True)
    if _digest_own(replacement.get()) != source:
        raise LookupError(f"Thunder's own {key} is not the known one")
    return replacement


def _digest_own(function: Any) -> str:
    while function.__code__.co_filename.startswith(_OWN_FOLDER) and hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return digest_source(function)


_OWN_FOLDER = __file__.rpartition("layers")[0]


def watch_trace(original: Callable[..., Any]) -> Callable[..., Any]:
    """Has a session for each trace. If something comes up after blocks were written out, the trace is made without.

    Nothing has an effect for the second time then: no block is written out after an effect, and an effect that is about
    to happen after blocks were written out is such a thing itself.
    """

    @wraps(original)
    def thunder_general_jit(fn: Any, args: Any, kwargs: Any, /, *, sharp_edges: Any, ad_hoc_executor: Any) -> Any:
        def trace() -> Any:
            return original(fn, args, kwargs, sharp_edges=sharp_edges, ad_hoc_executor=ad_hoc_executor)

        session, restore = Session(fn), _save_state(ad_hoc_executor)
        try:
            with _current(session):
                return trace()
        except (Exception, Conflict) as error:  # Thunder's interpreter makes an exception of its own of any other
            if not session.written or not _may_begin_anew(error):
                raise
            session.reasons[_explain(error)] += 1
        finally:
            OUTCOMES.append(session.end())
        logger.info("a model is traced again, with every block interpreted")
        restore()
        with _current(None):
            return trace()

    return thunder_general_jit


# Functions of their own: a variable that holds an exception keeps alive all that its traceback leads back to.
def _may_begin_anew(error: BaseException) -> bool:
    return isinstance(error.__cause__ or error, Exception | Conflict)


def _explain(error: BaseException) -> str:
    cause = error.__cause__ or error
    return str(cause) if isinstance(cause, Conflict) else "an exception was raised"


@contextmanager
def _current(session: Session | None) -> Iterator[None]:
    token = CURRENT.set(session)
    try:
        yield
    finally:
        CURRENT.reset(token)


def _save_state(executor: Any) -> Callable[[], None]:
    """Returns what gives back to Thunder what tracing changes that is not made anew for each trace."""
    from thunder.core.compile_data import get_compile_data

    compiled = get_compile_data()
    saved = {name: dict(value) if isinstance(value, dict) else value for name, value in vars(executor).items()}
    enabled = compiled.is_grad_enabled if compiled is not None else None
    contexts = list(compiled.autocast_stack.stack) if compiled is not None else []

    def restore() -> None:
        vars(executor).update(saved)
        if compiled is not None:
            compiled.is_grad_enabled = enabled
            compiled.autocast_stack.stack.clear()
            compiled.autocast_stack.stack.extend(contexts)

    return restore


def watch_calls(original: Callable[..., Any]) -> Callable[..., Any]:
    """Stands where the interpreter asks what to do in place of interpreting a call."""
    import torch
    from thunder.core.interpreter import _interpret_call, get_interpreterruntimectx, is_opaque

    @wraps(original)
    def general_jit_lookaside(fn: Any, *args: Any, **kwargs: Any) -> Any:
        session, result = CURRENT.get(), original(fn, *args, **kwargs)
        if session is None:
            return result
        if isinstance(result, partial) and result.func is _interpret_call:
            return result  # a shortcut's own function: what it does is seen as it is interpreted
        opaque = result is None and is_opaque(fn)
        if result is not None or opaque:
            session.note_call(fn, args, opaque)
        elif isinstance(fn, torch.nn.Module) and session.wants(fn):
            wrapper = find_wrapper(fn, get_interpreterruntimectx())
            return None if wrapper is None else _call_block(session, fn, wrapper)
        return result

    return general_jit_lookaside


def _call_block(session: Session, module: Any, wrapper: Any) -> Callable[..., Any]:
    from thunder.core import interpreter

    def call_block(*args: Any, **kwargs: Any) -> Any:
        def interpret() -> Any:
            call = interpreter._interpret_call(getattr, wrapper, interpreter.wrap_const("__call__"))
            assert not isinstance(call, interpreter.INTERPRETER_SIGNALS)
            interpreter.populate_attribute_wrapper(call, "__self__", wrapper)
            return interpreter._interpret_call(call, *args, **kwargs)

        return session.call(module, interpret, args, kwargs)

    return call_block


def watch_wrappers(original: Callable[..., Any]) -> Callable[..., Any]:
    """Looks at each wrapper that the interpreter makes."""

    @wraps(original)
    def _general_jit_wrap_callback(value: Any) -> Any:
        session = CURRENT.get()
        if session is not None:
            session.check_wrapper(value)
        return original(value)

    return _general_jit_wrap_callback


def watch_reads(original: Callable[..., Any]) -> Callable[..., Any]:
    """Notes each proxy that a value is given."""
    from thunder.core.proxies import Proxy

    @wraps(original)
    def proxify(self: Any, value: Any) -> Any:
        session = CURRENT.get()
        recording = session.recording if session is not None else None
        if recording is None or isinstance(value.value, Proxy) or value.original_value is not value.nothing:
            return original(self, value)
        trace, own = self.computation_trace, value.value
        symbols = len(trace.bound_symbols) - recording.start.symbols
        names = trace.name_ctr - recording.start.names
        proxy = original(self, value)
        if isinstance(proxy, Proxy):
            recording.note_read(value, own, proxy, symbols, names)
        elif vars(value).get("born") is not recording:
            recording.refuse("a container of the model's is given proxies")
        return proxy

    return proxify


def watch_store(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Notes an instruction that may change what other code can see."""
    depth, _ = _STORES[name]

    def watch(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def handler(inst: Any, /, **state: Any) -> Any:
            session = CURRENT.get()
            if session is not None:
                frame, stack = state["frame"], state["stack"]
                if depth:
                    session.note_store(name, stack.getitem_wrapped(-depth), frame)
                elif not is_internal(frame.module):
                    session.note_store(name, None, frame, is_own=_is_own_cell(name, inst, state["co"]))
            return original(inst, **state)

        return handler

    return watch


def _is_own_cell(name: str, inst: Any, code: Any) -> bool:
    """Tells whether a variable of a closure belongs to the function itself."""
    return name.endswith("_DEREF") and inst.argval in code.co_cellvars


def watch_hashing(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Notes an instruction by which code of an object's own may be executed that is not interpreted."""

    def watch(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def handler(inst: Any, /, **state: Any) -> Any:
            session = CURRENT.get()
            if session is not None and not all(map(_is_hashed_alone, _find_hashed(name, inst.arg, state["stack"]))):
                session.note_store(name, None, state["frame"])
            return original(inst, **state)

        return handler

    return watch


def _find_hashed(name: str, count: int, stack: Any) -> list[Any]:
    """Returns what an instruction is about to take from the stack and to use as a key, or the keys of it."""
    if name in ("BUILD_SET", "BUILD_MAP"):
        step = 1 if name == "BUILD_SET" else 2
        return [stack[-step * (place + 1)] for place in range(count)]
    if name in ("SET_ADD", "MAP_ADD"):
        return [stack[-1 if name == "SET_ADD" else -2]]
    taken = stack[-1]
    return list(taken) if type(taken) in (list, tuple, set, frozenset, dict, OrderedDict) else [object()]


def _is_hashed_alone(value: Any) -> bool:
    """Tells whether a key is one of Python's constants, which asks nothing else for a hash."""
    # The hash of a class is that of its metaclass, which Python has in C where it is not overridden.
    if isinstance(value, type):
        return type(value).__hash__ is type.__hash__
    return type(value) in _KEYS or (type(value) is tuple and all(map(_is_hashed_alone, value)))


def watch_comparison(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Notes an instruction that tells one object from another."""

    def watch(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def handler(inst: Any, /, **state: Any) -> Any:
            session = CURRENT.get()
            if session is not None and session.recording is not None:
                stack = state["stack"]
                one, other = stack.getitem_wrapped(-2).value, stack.getitem_wrapped(-1).value
                session.note_comparison(one, other, by_identity=name == "IS_OP")
            return original(inst, **state)

        return handler

    return watch
