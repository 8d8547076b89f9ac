"""Gives a model's code sizes in place of plain integers while it is interpreted, and notes what is done with them.

    results, journal = watch_sizes(thunder_general_jit, compile_data, args, kwargs)
    journal.looks()                    # each comparison or use of a value, with its line

Operations of Thunder's are called with plain integers, and so is everything that nobody interprets, but for what only
moves values about. So a trace is made as without this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import wraps
from inspect import unwrap
from typing import Any

from fusioncache.accelerators.sizes.expressions import ARITHMETIC, COMPARISONS
from fusioncache.accelerators.sizes.first_traces import FirstTraces
from fusioncache.accelerators.sizes.journal import Journal
from fusioncache.accelerators.sizes.sizes import WATCHED, bare, combine, is_number
from fusioncache.accelerators.sizes.watch import Watch, strip
from fusioncache.thunder_adapter import hooks, installation
from fusioncache.thunder_adapter.interpreter.calls import OPERATIONS, call_method_of_tensor
from fusioncache.thunder_adapter.interpreter.wrapped import wrap_globals

type Interpret = Callable[[tuple[Any, ...], dict[str, Any]], Any]
"""Has Thunder interpret a program, with these arguments."""

CURRENT: ContextVar[Watch | None] = ContextVar("fusioncache_sizes", default=None)
"""What watches the trace that is being made here."""


def watch_sizes(
    interpret: Interpret, compiled: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, Journal]:
    """Interprets a program, and watches what it does with sizes.

    Args:
        interpret: has Thunder interpret it.
        compiled: what Thunder knows of the function.
        args: of the call.
        kwargs: of the call.

    Returns:
        What that returns, and what happened.
    """
    installation.install_more("sizes")
    watch = Watch(Journal(), compiled)
    token = CURRENT.set(watch)
    try:
        with hooks.observe(watch):
            results = interpret(*watch.give_sizes(args, kwargs))
    finally:
        CURRENT.reset(token)
    return results, watch.finish(FirstTraces.of(results))


def watch_calls(original: Callable[..., Any]) -> Callable[..., Any]:
    """Stands where the interpreter asks what to do in place of interpreting a call."""

    @wraps(original)
    def general_jit_lookaside(fn: Any, *args: Any, **kwargs: Any) -> Any:
        watch = CURRENT.get()
        return original(fn, *args, **kwargs) if watch is None else watch.choose(original, fn, args, kwargs)

    return general_jit_lookaside


def watch_readings(original: Callable[..., Any]) -> Callable[..., Any]:
    """Notes each value from outside that is given a proxy. Thunder is shown plain integers, and sizes stay in place."""
    from fusioncache.thunder_adapter.api import Proxy

    @wraps(original)
    def proxify(self: Any, value: Any) -> Any:
        watch = CURRENT.get()
        if watch is None or isinstance(value.value, Proxy) or value.original_value is not value.nothing:
            return original(self, value)
        before = self.computation_trace.name_ctr
        given, value.value = value.value, bare(value.value)
        proxy = original(self, value)
        if type(given) in WATCHED:
            value.value = given
        if isinstance(proxy, Proxy):
            watch.note_reading(proxy, (before, self.computation_trace.name_ctr))
        return proxy

    return proxify


def watch_namings(original: Callable[..., Any]) -> Callable[..., Any]:
    """Notes each variable that a proxy is stored in."""
    from fusioncache.thunder_adapter.accelerator_api import get_interpreterruntimectx, get_jit_ctx
    from fusioncache.thunder_adapter.api import Proxy

    @wraps(original)
    def _maybe_update_proxy_name(orig_value: Any, name: str, is_internal: bool | None = None) -> None:
        watch = CURRENT.get()
        if watch is not None and isinstance(getattr(orig_value, "value", None), Proxy):
            internal = is_internal
            if internal is None:
                frame = get_interpreterruntimectx().peek_frame_stack()
                internal = frame.module in {"thunder.core.interpreter", "thunder.core.jit_ext"}
            if not internal and name not in ("fn", "obj"):
                watch.note_naming(orig_value.value, name)
        original(orig_value, name, is_internal)
        if watch is not None:
            watch.renamed = get_jit_ctx()._proxy_swapmap

    return _maybe_update_proxy_name


def watch_results(original: Callable[..., Any]) -> Callable[..., Any]:
    """Tells of sizes that a program returns: the epilogue has their values."""

    @wraps(original)
    def build_value_from_wrapped(wrapped_v: Any) -> Any:
        watch = CURRENT.get()
        if watch is not None:
            wrapped_v.value = watch.give_back(wrapped_v.value)
        return original(wrapped_v)

    return build_value_from_wrapped


def watch_arithmetic(original: Callable[..., Any]) -> Callable[..., Any]:
    """Computes with sizes, where Thunder would interpret how Python does."""
    from fusioncache.thunder_adapter.accelerator_api import INTERPRETER_SIGNALS, do_raise
    from fusioncache.thunder_adapter.api import Proxy

    own = unwrap(original)

    @wraps(original)
    def _binary_op(stack: Any, op: Any, a: Any, b: Any) -> Any:
        watch = CURRENT.get()
        if watch is None or not any(type(each.value) in WATCHED for each in (a, b)):
            return original(stack, op, a, b)
        symbol, *_ = OPERATIONS[op.value % len(OPERATIONS)]
        if is_number(a.value) and is_number(b.value) and symbol in ARITHMETIC:
            try:
                result = combine(symbol, a.value, b.value)
            except ArithmeticError as error:
                return do_raise(error)
            stack.append(result)
            return None
        if isinstance(a.value, Proxy) or isinstance(b.value, Proxy):
            result = call_method_of_tensor(op.value, a, b, wrap_globals(own))
            if result is INTERPRETER_SIGNALS.EXCEPTION_RAISED:
                return result
            stack.append(result)
            return None
        for each in (a, b):
            if type(each.value) in WATCHED:
                each.value.witness.see_value(each.value, f"computes {symbol}")
        return original(stack, op, strip(a, watch), strip(b, watch))

    return _binary_op


def watch_negation(original: Callable[..., Any]) -> Callable[..., Any]:
    """Negates sizes."""

    @wraps(original)
    def unary_negative_handler(inst: Any, /, stack: Any, **kwargs: Any) -> Any:
        if type(stack.getitem_wrapped(-1).value) not in WATCHED:
            return original(inst, stack=stack, **kwargs)
        stack.append(-stack.pop())
        return None

    return unary_negative_handler


def watch_identity(original: Callable[..., Any]) -> Callable[..., Any]:
    """Tells of numbers that are compared by identity, which says nothing that would stay so."""

    @wraps(original)
    def is_op_handler(inst: Any, /, stack: Any, **kwargs: Any) -> Any:
        pair = [stack.getitem_wrapped(place).value for place in (-1, -2)]
        watch = CURRENT.get()
        if watch is not None and all(map(is_number, pair)) and any(type(each) in WATCHED for each in pair):
            watch.journal.refuse("numbers are compared by identity")
        return original(inst, stack=stack, **kwargs)

    return is_op_handler


def watch_comparison(original: Callable[..., Any]) -> Callable[..., Any]:
    """Tells of sizes that are compared with what takes an integer's value without asking it, as a float does.

    A comparison with a tensor is an operation that nobody interprets.
    """
    from fusioncache.thunder_adapter.api import TensorProxy

    @wraps(original)
    def compare_op_handler(inst: Any, /, stack: Any, **kwargs: Any) -> Any:
        watch = CURRENT.get()
        if watch is None:
            return original(inst, stack=stack, **kwargs)
        pair = [stack.getitem_wrapped(place) for place in (-2, -1)]
        values = [each.value for each in pair]
        if not any(isinstance(value, TensorProxy) for value in values):
            watch.compare(values)
            return original(inst, stack=stack, **kwargs)

        def call() -> Any:
            stack.pop_wrapped()
            stack.pop_wrapped()
            for each in pair:
                stack.append(strip(each, watch))
            assert original(inst, stack=stack, **kwargs) is None
            return stack.getitem_wrapped(-1).value

        watch.call_native(COMPARISONS[inst.argval], values, call)
        return None

    return compare_op_handler
