"""Replacements of Thunder's functions while a model's code runs on sizes, and passes on symbols.

    results, journal = watch_sizes(thunder_general_jit, compile_data, args, kwargs)
    journal.entries                    # also each comparison or use of a value, with its line

While Thunder interprets a program, its code gets sizes in place of plain integers. Thunder's operations get plain
integers. So does code that is not interpreted, unless it only moves values. The trace is therefore the usual one.

While Thunder's passes run with symbols for sizes, a few functions are replaced by versions that support symbols. For
other threads these do what Thunder's do. The originals are put back after the passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from inspect import unwrap
from types import ModuleType
from typing import Any

from fusioncache.accelerators.sizes.journal import FirstTraces, Journal
from fusioncache.accelerators.sizes.sizes import (
    ARITHMETIC,
    COMPARISONS,
    SYMBOLIC,
    WATCHED,
    SymbolicFraction,
    SymbolicSize,
    combine,
    is_number,
    to_float,
    to_thunder,
)
from fusioncache.accelerators.sizes.watch import SizeObserver, strip
from fusioncache.process import forks
from fusioncache.thunder_adapter import hooks, installation
from fusioncache.thunder_adapter.accelerator_api import interpreter, jit_ext
from fusioncache.thunder_adapter.api import Proxy, TensorProxy
from fusioncache.thunder_adapter.hooks import while_set
from fusioncache.thunder_adapter.installation import Importers, find_replacements
from fusioncache.thunder_adapter.shortcuts.calls import OPERATIONS, call_method_of_tensor
from fusioncache.thunder_adapter.shortcuts.values import wrap_globals

_LISTENER: ContextVar[Any] = ContextVar("fusioncache_passes", default=None)
"""The ``PassListener`` of the passes that run in this context."""

_ONE_AT_A_TIME = forks.lock()

type _Original = Callable[..., Any]
"""The function of Thunder that a replacement calls."""


@contextmanager
def support_symbols(listener: Any) -> Iterator[None]:
    """Installs functions that support symbols while its body runs. Other threads see the usual behavior.

    Args:
        listener: the ``PassListener`` that records decisions.
    """
    replacements = find_replacements("symbolic passes")
    with _ONE_AT_A_TIME:
        swapped = [(each, old := each.get(), each.make(old)) for each in replacements]
        importers = Importers()
        for each, old, new in swapped:
            each.swap(old, new, importers)
        try:
            with hooks.assign(_LISTENER, listener):
                yield
        finally:
            importers = Importers()  # a module may have imported a replacement meanwhile
            for each, old, new in swapped:
                each.swap(new, old, importers)


@while_set(_LISTENER)
def keep_symbols(_: Any, original: _Original, func: Callable[..., Any], /, *trees: Any, **options: Any) -> Any:
    """Replaces ``tree_map`` so that mapping ``int`` keeps symbols: ``int`` itself can return only plain integers."""
    return original(_to_integer if func is int else func, *trees, **options)


@while_set(_LISTENER)
def flatten_symbols(_: Any, original: _Original, args: Any, **options: Any) -> Any:
    """Replaces ``tree_flatten`` so that a symbol is a tree of one leaf, as a plain number is."""
    if type(args) not in SYMBOLIC:
        return original(args, **options)
    _, spec = original(0, **options)
    return [args], spec


def _to_integer(value: Any) -> Any:
    return value if isinstance(value, SymbolicSize) else int(value)


@while_set(_LISTENER)
def note_decision(listener: Any, original: _Original, /, *args: Any, **kwargs: Any) -> Any:
    """Replaces a deciding function so that its result is recorded as a guard and computed again at other sizes."""
    return original(*args, **kwargs) if kwargs else listener.decide(original, args)


@while_set(_LISTENER)
def count_symbols(_: Any, original: _Original, proxy: Any, /, *args: Any, **kwargs: Any) -> None:
    """Replaces ``__init__`` of tensor proxies so that ``numel`` may be a symbol: Thunder makes an integer of it."""
    original(proxy, *args, **kwargs)
    if isinstance(proxy._numel, SymbolicSize):
        proxy.numel = proxy._numel


@while_set(_LISTENER)
def map_symbol_classes(_: Any, original: _Original, cls: type) -> Any:
    """Replaces ``_numberclass_to_numbertype`` so that classes of symbols map to ``int`` and ``float``."""
    return original(int if cls is SymbolicSize else float if cls is SymbolicFraction else cls)


@while_set(_LISTENER)
def convert_symbols(_: Any, original: _Original, a: Any, dtype: Any, **options: Any) -> Any:
    """Replaces ``maybe_convert_to_dtype`` so that converting a symbol to float gives a symbol, as ``float`` cannot."""
    from fusioncache.thunder_adapter.accelerator_api import dtype_to_numbertype

    if type(a) in SYMBOLIC and dtype_to_numbertype(dtype) is float:
        return to_float(a)
    return original(a, dtype, **options)


def assume_finite_symbols(original: ModuleType) -> ModuleType:
    """Returns a copy of a module whose ``isfinite`` is true for symbols without reading their values."""
    copy = ModuleType(original.__name__, original.__doc__)
    vars(copy).update(vars(original))
    vars(copy)["isfinite"] = lambda value: type(value) in SYMBOLIC or original.isfinite(value)
    return copy


type Interpret = Callable[[tuple[Any, ...], dict[str, Any]], Any]
"""Makes Thunder interpret a program with these arguments."""

CURRENT: ContextVar[SizeObserver | None] = ContextVar("fusioncache_sizes", default=None)
"""The ``SizeObserver`` of the trace that is being made in this context."""


def watch_sizes(
    interpret: Interpret, compiled: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, Journal]:
    """Interprets a program, and records its uses of sizes.

    Args:
        interpret: makes Thunder interpret the program.
        compiled: Thunder's ``CompileData`` of the function.
        args: of the call.
        kwargs: of the call.

    Returns:
        The result of ``interpret``, and the journal.
    """
    installation.install_more("sizes")
    watch = SizeObserver(Journal(), compiled)
    with hooks.assign(CURRENT, watch), hooks.observe(watch):
        results = interpret(*watch.wrap_sizes(args, kwargs))
    return results, watch.finish(FirstTraces.of(results))


@while_set(CURRENT)
def watch_calls(watch: SizeObserver, original: _Original, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Wraps ``general_jit_lookaside``, which returns the function that the interpreter calls in place of another."""
    return watch.choose(original, fn, args, kwargs)


@while_set(CURRENT)
def watch_readings(watch: SizeObserver, original: _Original, context: Any, value: Any) -> Any:
    """Wraps ``proxify`` to record each outside value that gets a proxy. Thunder sees plain integers; sizes stay."""
    if isinstance(value.value, Proxy) or value.original_value is not value.nothing:
        return original(context, value)
    before = context.computation_trace.name_ctr
    given, value.value = value.value, to_thunder(value.value)
    proxy = original(context, value)
    if type(given) in WATCHED:
        value.value = given
    if isinstance(proxy, Proxy):
        watch.note_reading(proxy, (before, context.computation_trace.name_ctr))
    return proxy


@while_set(CURRENT)
def watch_namings(
    watch: SizeObserver, original: _Original, orig_value: Any, name: str, is_internal: bool | None = None
) -> None:
    """Wraps ``_maybe_update_proxy_name`` to record each variable that a proxy is assigned to."""
    if isinstance(getattr(orig_value, "value", None), Proxy):
        internal = is_internal
        if internal is None:
            frame = interpreter.get_interpreterruntimectx().peek_frame_stack()
            internal = frame.module in {"thunder.core.interpreter", "thunder.core.jit_ext"}
        if not internal and name not in ("fn", "obj"):
            watch.note_naming(orig_value.value, name)
    original(orig_value, name, is_internal)
    watch.renamed = jit_ext.get_jit_ctx()._proxy_swapmap


@while_set(CURRENT)
def watch_results(watch: SizeObserver, original: _Original, wrapped_v: Any) -> Any:
    """Wraps ``build_value_from_wrapped`` to report sizes that a program returns: the epilogue contains their values."""
    wrapped_v.value = watch.unwrap_sizes(wrapped_v.value)
    return original(wrapped_v)


@while_set(CURRENT)
def watch_arithmetic(watch: SizeObserver, original: _Original, stack: Any, op: Any, a: Any, b: Any) -> Any:
    """Wraps ``_binary_op`` to compute with sizes directly, where Thunder would interpret Python's arithmetic."""
    if not any(type(each.value) in WATCHED for each in (a, b)):
        return original(stack, op, a, b)
    symbol, *_ = OPERATIONS[op.value % len(OPERATIONS)]
    if is_number(a.value) and is_number(b.value) and symbol in ARITHMETIC:
        try:
            result = combine(symbol, a.value, b.value)
        except ArithmeticError as error:
            return interpreter.do_raise(error)
    elif isinstance(a.value, Proxy) or isinstance(b.value, Proxy):
        result = call_method_of_tensor(op.value, a, b, wrap_globals(unwrap(original)))
        if result is interpreter.INTERPRETER_SIGNALS.EXCEPTION_RAISED:
            return result
    else:
        for each in (a, b):
            if type(each.value) in WATCHED:
                each.value.listener.see_value(each.value, f"computes {symbol}")
        return original(stack, op, strip(a, watch), strip(b, watch))
    stack.append(result)
    return None


@while_set(CURRENT)
def watch_identity(watch: SizeObserver, original: _Original, inst: Any, /, stack: Any, **kwargs: Any) -> Any:
    """Wraps the ``IS_OP`` handler to refuse numbers that are compared by identity: the result is no stable guard."""
    pair = [stack.getitem_wrapped(place).value for place in (-1, -2)]
    if all(map(is_number, pair)) and any(type(each) in WATCHED for each in pair):
        watch.journal.refuse("numbers are compared by identity")
    return original(inst, stack=stack, **kwargs)


@while_set(CURRENT)
def watch_comparison(watch: SizeObserver, original: _Original, inst: Any, /, stack: Any, **kwargs: Any) -> Any:
    """Wraps the ``COMPARE_OP`` handler to report sizes that are read without a call of their methods, as by floats.

    A comparison with a tensor is recorded as an operation that is not interpreted.
    """
    pair = [stack.getitem_wrapped(place) for place in (-2, -1)]
    values = [each.value for each in pair]
    if not any(isinstance(value, TensorProxy) for value in values):
        watch.compare(values)
        return original(inst, stack=stack, **kwargs)

    def call(*plains: Any) -> Any:
        for _ in pair:
            stack.pop_wrapped()
        for each in plains:
            stack.append(each)
        assert original(inst, stack=stack, **kwargs) is None
        return stack.pop_wrapped()

    operation = COMPARISONS[inst.argval]
    stack.append(watch.call(operation, call, operation.__name__, *pair))
    return None
