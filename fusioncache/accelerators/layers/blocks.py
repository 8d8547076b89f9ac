"""Blocks of a model that are alike, interpreted until one comes out as foretold, and from then on written out."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from fusioncache.accelerators.layers.session import CURRENT, Outcome, Session
from fusioncache.accelerators.layers.stamping import Conflict
from fusioncache.thunder_adapter import hooks

logger = logging.getLogger("fusioncache")

OUTCOMES: deque[Outcome] = deque(maxlen=16)
"""What became of the blocks of the models that were traced last in this process."""


def watch_trace(original: Callable[..., Any]) -> Callable[..., Any]:
    """Has a session for each trace that is vouched for. If something comes up that forbids it, the trace begins anew.

    Nothing has an effect for the second time then: no block is written out after an effect, and an effect that is about
    to happen after blocks were written out is such a thing itself.
    """

    @wraps(original)
    def thunder_general_jit(fn: Any, args: Any, kwargs: Any, /, *, sharp_edges: Any, ad_hoc_executor: Any) -> Any:
        def trace() -> Any:
            return original(fn, args, kwargs, sharp_edges=sharp_edges, ad_hoc_executor=ad_hoc_executor)

        if not hooks.is_vouched_for():
            return trace()
        session, restore = Session(fn), _save_state(ad_hoc_executor)
        try:
            with _current(session), hooks.observe(session):
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
    from fusioncache.thunder_adapter.api import get_compile_data

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
    from fusioncache.thunder_adapter.api import Proxy

    @wraps(original)
    def proxify(self: Any, value: Any) -> Any:
        session = CURRENT.get()
        if session is None or isinstance(value.value, Proxy) or value.original_value is not value.nothing:
            return original(self, value)
        recording, trace, own = session.recording, self.computation_trace, value.value
        symbols, names = len(trace.bound_symbols), trace.name_ctr
        proxy = original(self, value)
        if not isinstance(proxy, Proxy):
            session.note_copy(proxy)
        if recording is None:
            return proxy
        if isinstance(proxy, Proxy):
            recording.note_read(value, own, proxy, symbols - recording.start.symbols, names - recording.start.names)
        elif vars(value).get("born") is not recording:
            recording.refuse("a container of the model's is given proxies")
        return proxy

    return proxify
