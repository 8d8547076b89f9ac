"""Records the journal of one trace: chooses what the interpreter calls in place of functions, and records the calls.

For a copied block, the entries of the original block are repeated with other tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import FunctionType
from typing import Any

from fusioncache.accelerators.layers.block_independence import is_internal
from fusioncache.accelerators.programs.introspection import find_tagging
from fusioncache.accelerators.programs.native import iterate_user_frames, list_proxy_methods
from fusioncache.accelerators.sizes.journal import (
    Entry,
    FirstTraces,
    Journal,
    Naming,
    OperationCall,
    Reading,
    SizeGuard,
    TensorName,
)
from fusioncache.accelerators.sizes.sizes import (
    WATCHED,
    Count,
    Expression,
    GuardListener,
    Number,
    Operation,
    Size,
    is_whole,
    to_float,
    to_int,
    to_thunder,
)
from fusioncache.accelerators.sizes.values import (
    Place,
    compares_items,
    exchange,
    find_integers,
    find_leaves,
    is_numel,
    is_transparent,
    name_argument,
    only_moves,
    reads_key_only,
    reads_types_only,
    sets_attribute,
    tests_emptiness,
)
from fusioncache.ir.errors import Declined, Scope
from fusioncache.thunder_adapter.accelerator_api import interpreter, jit_ext
from fusioncache.thunder_adapter.api import Proxy, Symbol, TensorProxy, get_tracectx, ltorch
from fusioncache.thunder_adapter.hooks import Observer


def list_parts(tensor: Any) -> tuple[Any, ...]:
    """Returns the parts of a tensor that iterating over it yields, as in ``q, k, v = tensor``."""
    return tuple(tensor)


class Operations:
    """Thunder's operations, by the functions that interpreted code calls for them."""

    def __init__(self) -> None:
        """Collects the operations from Thunder."""
        self._getter = jit_ext.TensorProxy.__getattr__
        pairs: list[tuple[Any, Callable[..., Any]]] = [(function, function) for function in jit_ext._clang_fn_set]
        pairs += ltorch._torch_to_thunder_function_map.items()
        pairs += list_proxy_methods()
        pairs.append((jit_ext.TensorProxy.__iter__, list_parts))
        for function, own in ((min, jit_ext.clang.minimum), (max, jit_ext.clang.maximum)):
            if function in jit_ext._general_jit_lookaside_map:  # from Thunder 0.2.7 on
                pairs.append((function, own))
        self._known = {id(function): (function, own) for function, own in pairs}

    def find(self, function: Any, compiled: Any) -> Callable[..., Any] | None:
        """Returns the operation that Thunder calls for a function; None if the function is not an operation.

        Args:
            function: the function that interpreted code calls.
            compiled: Thunder's ``CompileData``. Its executors may replace the function by another operation.
        """
        replaced = [own for each, own in compiled.executor_lookasides.items() if each is function]
        if replaced:
            return replaced[0]  # type: ignore[no-any-return]
        if isinstance(function, Symbol):
            return function  # type: ignore[return-value]
        _, own = self._known.get(id(function), (None, None))
        return own

    def only_finds(self, operation: Callable[..., Any], result: Any) -> bool:
        """True if an operation only looked up a method of a tensor."""
        value = getattr(result, "value", None)
        return operation is self._getter and callable(value) and not isinstance(value, int)

    def reorders_sums(self, function: Any, values: Sequence[Any]) -> bool:
        """True if Python's ``sum`` is called with tensors. Its additions are not interpreted, as it is C code."""
        items = values[0] if function is sum and values else ()
        return type(items) in (list, tuple) and any(isinstance(each, TensorProxy) for each in items)


class Repetition:
    """The journal entries of a copied block, made from those of the original block.

    Args:
        names: the names of the block's tensors, by the names of the original block's tensors.
        shift: how far the trace's name counter advanced from the original block to this one.
        numbers: the number of variables so far.
        readings: the readings of this block.
    """

    def __init__(self, names: Mapping[str, str], shift: int, numbers: int, readings: Sequence[Reading]) -> None:
        self.numbers = numbers
        self._names = names
        self._shift = shift
        self._readings = list(readings)
        self._positions: dict[int, int] = {}

    def repeat(self, entries: Sequence[Entry]) -> list[Entry]:
        """Returns the entries of this block. ``Naming`` entries are not repeated.

        Raises:
            Declined: if readings or results do not correspond, or a container cannot be rebuilt.
        """
        found: list[Entry] = []
        for entry in entries:
            if isinstance(entry, Reading):
                found.append(self._read(entry))
            elif isinstance(entry, OperationCall):
                found.append(self._call(entry))
            elif isinstance(entry, SizeGuard):
                left, right = map(self._renumber, (entry.left, entry.right))
                found.append(replace(entry, left=left, right=right))
        if self._readings:
            raise Declined("more was read", Scope.STRUCTURE)
        return found

    def _read(self, reading: Reading) -> Reading:
        new = self._readings.pop(0) if self._readings else None
        if new is None or new.names != self._move(reading.names):
            raise Declined("something else was read", Scope.STRUCTURE)
        if self._names.get(reading.proxy.name) != new.proxy.name:
            raise Declined("something was read at another place", Scope.STRUCTURE)
        return new

    def _call(self, call: OperationCall) -> OperationCall:
        if _name_tensors(call.result) - _name_tensors((call.args, call.kwargs)) - self._names.keys():
            raise Declined("the result of an operation is unknown", Scope.STRUCTURE)
        args, kwargs = (exchange(each, self._exchange) for each in (call.args, call.kwargs))
        result = exchange(call.result, self._return)
        return replace(call, args=args, kwargs=kwargs, result=result, names=self._move(call.names))

    def _move(self, names: tuple[int, int]) -> tuple[int, int]:
        return names[0] + self._shift, names[1] + self._shift

    def _return(self, leaf: Any) -> Any:
        if not isinstance(leaf, Number):
            return self._exchange(leaf)
        self.numbers += 1
        self._positions[leaf.position] = self.numbers
        return replace(leaf, position=self.numbers)

    def _exchange(self, leaf: Any) -> Any:
        if isinstance(leaf, TensorName):
            return TensorName(self._names.get(leaf.name, leaf.name))
        return self._renumber(leaf) if isinstance(leaf, Number | Operation) else leaf

    def _renumber(self, expression: Expression) -> Expression:
        if isinstance(expression, Number):
            return replace(expression, position=self._positions.get(expression.position, expression.position))
        if isinstance(expression, Operation):
            return replace(expression, left=self._renumber(expression.left), right=self._renumber(expression.right))
        return expression


def _name_tensors(value: Any) -> set[str]:
    """Returns the names of the tensors in recorded arguments or results."""
    return {leaf.name for leaf in find_leaves(value) if isinstance(leaf, TensorName)}


def find_entries(entries: Sequence[Entry], names: tuple[int, int]) -> Sequence[Entry]:
    """Returns the entries that were added between two values of the name counter."""
    counted = [
        position
        for position, entry in enumerate(entries)
        if isinstance(entry, OperationCall | Reading) and names[0] <= entry.names[0] and entry.names[1] <= names[1]
    ]
    return entries[counted[0] : counted[-1] + 1] if counted else ()


class SizeObserver(Observer, GuardListener):
    """Observer that records uses of sizes in one trace."""

    def __init__(self, journal: Journal, compiled: Any) -> None:
        """Takes the journal to write, and Thunder's ``CompileData`` of the function."""
        self.journal = journal
        self._compiled = compiled
        self.renamed: Mapping[Any, Any] = {}
        self._operations = Operations()
        self._count = 0
        self._symbols = 0
        self._trace: Any = None
        self._is_inside = False
        self._is_done = False
        self._seen: Any = None
        self._named: set[tuple[str, str]] = set()

    def wrap_sizes(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the arguments of the program, with a ``Size`` for each integer above 1."""
        sizes = {place: self._name_integer(place, value) for place, value in find_integers(args, kwargs).items()}
        given = tuple(sizes.get(position, value) for position, value in enumerate(args))
        return given, {name: sizes.get(name, value) for name, value in kwargs.items()}

    def _name_integer(self, place: Place, value: int) -> Size:
        self._count += 1
        self.journal.integers[place] = self._count
        return Size(value, Number(self._count, name_argument(place)), self)

    def guard(self, symbol: str, left: Expression, right: Expression, outcome: bool, reason: str) -> None:
        """Records that something depends on the outcome of a comparison."""
        if not self._is_done:
            self.journal.entries.append(SizeGuard(symbol, left, right, outcome, reason, _find_place()))

    def refuse(self, reason: str) -> None:
        """Records why other sizes are not supported."""
        self.journal.refuse(reason)

    def choose(self, original: Callable[..., Any], fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Returns the function to call in place of another one, as ``general_jit_lookaside`` does.

        Args:
            original: ``general_jit_lookaside``.
            fn: the function that interpreted code calls.
            args: its positional arguments in the interpreter's wrappers; empty if only the replacement is asked for.
            kwargs: its keyword arguments.
        """
        if fn is self._seen:
            self._seen = None
            return original(fn, *args, **kwargs)
        is_of_size = len(args) == 1 and type(args[0].value) in WATCHED
        if _is_of_sizes(fn) or (fn is bool and is_of_size):
            return interpreter.interpreter_needs_wrap(fn)
        if type(fn) is Count:
            return interpreter.interpreter_needs_wrap(partial(Count.__call__, fn))
        if fn is int and is_of_size and is_whole(args[0].value):
            return interpreter.interpreter_needs_wrap(to_int)
        if fn is float and is_of_size:
            return interpreter.interpreter_needs_wrap(to_float)
        if fn is getattr and _is_private(args):
            self.journal.refuse("reads a private attribute of a tensor proxy")
        found = original(fn, *args, **kwargs)
        if found is interpreter.INTERPRETER_SIGNALS.EXCEPTION_RAISED or self._is_inside:
            return found
        operation = self._operations.find(fn, self._compiled)
        if operation is not None and found is not None:
            return partial(self.call, operation, found, _name(fn))
        if found is None and self._operations.reorders_sums(fn, [each.value for each in (*args, *kwargs.values())]):
            return partial(self.call, fn, partial(self._call_itself, fn), _name(fn))
        if found is None and not interpreter.is_opaque(fn):
            return None
        if _is_interpreted(found) or not self._reads_sizes(fn, args, kwargs):
            return found
        return partial(self._call_with_plain, fn)

    def _reads_sizes(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """True if a function that is not interpreted would read sizes. Records the guards, and refuses hidden sizes."""
        values = [*(each.value for each in args), *(each.value for each in kwargs.values())]
        if reads_key_only(fn):
            values = values[1:2]
        elif sets_attribute(fn):
            values = values[1:]
        if reads_types_only(fn):
            values = values[:1]
        elif only_moves(fn, is_internal=_is_internal()) or tests_emptiness(fn, values):
            return False
        try:
            leaves = [leaf for value in values for leaf in find_leaves(value)]
        except Declined as error:
            error.require(Scope.STRUCTURE)
            self.journal.refuse(f"{_name(fn)} is called with {error}")
            return False
        shown = [leaf for leaf in leaves if type(leaf) in WATCHED]
        for leaf in () if reads_types_only(fn) or reads_key_only(fn) else leaves:
            if not is_transparent(leaf):
                if _is_tagging():
                    return False
                self.journal.refuse(f"{_name(fn)} is called with a {type(leaf).__name__}, which may hold sizes")
        if not shown or ((compares_items(fn) or fn is sum) and all(map(is_whole, leaves))):
            return False  # the methods of sizes are called, which record guards or expressions
        if not reads_types_only(fn):
            for size in shown:
                self.see_value(size, f"calls {_name(fn)}")
        return True

    def _call_itself(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Makes the interpreter call a function itself, without a replacement."""
        self._seen = fn
        try:
            return interpreter._interpret_call(fn, *args, **kwargs)
        finally:
            self._seen = None

    def _call_with_plain(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        import torch

        plains = [self._strip_unchanging(each) for each in args]
        named = {name: self._strip_unchanging(each) for name, each in kwargs.items()}
        result = self._call_itself(fn, *plains, **named)
        # A list of sizes was passed unchanged, and all of them were looked at.
        return strip(result, self) if type(getattr(result, "value", None)) is torch.Size else result

    def _strip_unchanging(self, wrapper: Any) -> Any:
        """Returns ``strip(wrapper)``, but a mutable container as it is: the call may change it, and reads its items."""
        return wrapper if isinstance(wrapper.value, list | dict | set) else strip(wrapper, self)

    def call(
        self, operation: Callable[..., Any], found: Callable[..., Any], name: str, /, *args: Any, **kwargs: Any
    ) -> Any:
        """Calls one of Thunder's operations with plain integers, and records the call.

        Args:
            operation: a function that does the same in a replay.
            found: calls the operation with wrapped arguments, and returns its wrapped result.
            name: of the operation, for messages.
            args: the positional arguments in the interpreter's wrappers.
            kwargs: the keyword arguments.
        """
        if self._is_inside:
            return found(*args, **kwargs)
        before, enabled = self._begin_call()
        self._is_inside = True
        try:
            plains = [strip(each, self) for each in args]
            result = found(*plains, **{name: strip(each, self) for name, each in kwargs.items()})
        finally:
            self._end_call()
        if self._operations.only_finds(operation, result):
            return result
        if result is interpreter.INTERPRETER_SIGNALS.EXCEPTION_RAISED:
            self.journal.refuse("an operation raised an error")
            return result
        given, named = [arg.value for arg in args], {key: arg.value for key, arg in kwargs.items()}
        if operation is list_parts:  # the result is an iterator, which can be read once
            parts = self._note_call(operation, name, (given, named, tuple(result.value)), before, enabled)
            return interpreter.wrap(iter(parts), provenance=result.provenance)
        returned = self._note_call(operation, name, (given, named, result.value), before, enabled)
        return result if returned is result.value else interpreter.wrap(returned, provenance=result.provenance)

    def _begin_call(self) -> tuple[int, bool]:
        """Returns the name counter, and whether gradients are enabled, before an operation is called.

        Refuses the journal if the trace changed in an unrecorded way.
        """
        trace = jit_ext.get_jit_ctx().computation_trace
        self._trace = self._trace or trace
        if self._trace is not trace:
            self.journal.refuse("it was traced twice")
        if get_tracectx() is not trace or len(trace.scopes) != 1 or len(trace.bound_symbols) != self._symbols:
            self.journal.refuse("an operation was added to the trace in an unknown way")
        return trace.name_ctr, self._compiled.is_grad_enabled

    def _end_call(self) -> None:
        self._is_inside = False
        self._symbols = len(self._trace.bound_symbols)

    def _note_call(
        self, operation: Callable[..., Any], name: str, done: tuple[Any, Any, Any], before: int, enabled: bool
    ) -> Any:
        """Records the arguments and result of an operation; returns the result with sizes for integers."""
        if not self._compiled.autocast_stack.is_empty():
            self.journal.refuse("an operation was called under autocast")
        given, named, result = done
        try:
            returned = exchange(result, partial(self._count_off, self._count, _describe(name, given)))
            args, kwargs = (exchange(each, self._record_given, anew=True) for each in (given, named))
            results = exchange(returned, self._record, anew=True)
        except Declined as error:
            error.require(Scope.STRUCTURE)
            self.journal.refuse(f"{name} is called with, or returns, a {error}")
            return result
        location = self._trace._current_source_filename, self._trace._current_source_positions
        names = before, self._trace.name_ctr
        self.journal.entries.append(OperationCall(operation, args, kwargs, results, names, location, enabled))
        return returned

    def _record(self, leaf: Any) -> Any:
        """Returns the recorded form of a leaf of arguments or results: an expression, a ``TensorName`` or itself."""
        if type(leaf) in WATCHED:
            if leaf.listener is not self:
                self.journal.refuse("meets a size of another trace")
            return leaf.expression
        return TensorName(leaf.name) if isinstance(leaf, Proxy) else leaf

    def _record_given(self, leaf: Any) -> Any:
        """Returns the recorded form of an argument leaf. Refuses a ``Count``: Thunder may treat its class specially."""
        if type(leaf) is Count:
            self.journal.refuse("an operation gets the method x.numel itself")
        return self._record(leaf)

    def _count_off(self, before: int, name: str, leaf: Any) -> Any:
        if not isinstance(leaf, int) or type(leaf) is bool:
            return leaf
        if type(leaf) is not int and not is_numel(leaf):
            self.journal.refuse(f"{name} is no plain integer")
            return leaf
        self._count += 1
        kind = Size if type(leaf) is int else Count
        return kind(leaf, Number(self._count, f"{name}[{self._count - before - 1}]"), self)

    def compare(self, pair: list[Any]) -> None:
        """Records a comparison that sizes cannot report, as it does not call their methods."""
        try:
            leaves = list(find_leaves(pair))
        except Declined as error:
            error.require(Scope.STRUCTURE)
            self.journal.refuse(f"compares {error}")
            return
        if not all(map(is_transparent, leaves)):
            self.journal.refuse("compares objects, which may hold sizes")
        if not all(is_whole(leaf) or leaf is None or type(leaf) is str for leaf in leaves):
            for size in leaves:
                if type(size) in WATCHED:
                    self.see_value(size, "compares")

    def unwrap_sizes(self, value: Any) -> Any:
        """Returns a program's result, or a part of it, with plain integers for sizes. Reports a guard for each."""
        if isinstance(value, dict):
            return type(value)((self.unwrap_sizes(key), self.unwrap_sizes(each)) for key, each in value.items())
        if type(value) in (tuple, list):
            return type(value)(map(self.unwrap_sizes, value))
        if type(value) in WATCHED:
            self.see_value(value, "returns it")
        return to_thunder(value)

    def note_reading(self, proxy: Any, names: tuple[int, int]) -> None:
        """Records that an outside value got a proxy."""
        self.journal.entries.append(Reading(proxy, names))

    def note_naming(self, proxy: Any, name: str) -> None:
        """Records that a proxy is assigned to a variable, without duplicates."""
        if (proxy.name, name) not in self._named:
            self._named.add((proxy.name, name))
            self.journal.entries.append(Naming(proxy.name, name))

    def see_copied(self, first: tuple[int, int], names: Mapping[str, str], shift: int) -> None:
        """Adds the entries of a copied block: those of the original block, with other tensors."""
        entries, start = self.journal.entries, first[0] + shift
        readings: list[Reading] = []
        while entries and isinstance(last := entries[-1], Reading) and last.names[0] >= start:
            entries.pop()
            readings.insert(0, last)
        try:
            repetition = Repetition(names, shift, self._count, readings)
            self.journal.entries += repetition.repeat(find_entries(entries, first))
        except Declined as error:
            error.require(Scope.STRUCTURE)
            self.journal.refuse(f"a repeated block was copied in an unknown way: {error}")
            return
        self._count = repetition.numbers
        self._symbols = len(self._trace.bound_symbols)

    def finish(self, traces: FirstTraces) -> Journal:
        """Returns the journal, with Thunder's first traces."""
        computation = traces.computation
        if len(computation.bound_symbols) - len(computation.args) - 1 != self._symbols:
            self.journal.refuse("an operation was added to the trace in an unknown way")
        self._is_done = True
        self.journal.traces = traces.copy()
        self.journal.renamed = {new.name: old.proxy.name for old, new in self.renamed.items()}
        return self.journal


def strip(wrapper: Any, watch: SizeObserver) -> Any:
    """Returns a wrapper of the same value with Thunder's integers for sizes; the given wrapper if there are no sizes.

    Args:
        wrapper: the interpreter's wrapper.
        watch: receives a refusal if sizes cannot be replaced in a container; then the given wrapper is returned.
    """
    try:
        value = exchange(wrapper.value, to_thunder)
    except Declined as error:
        error.require(Scope.STRUCTURE)
        watch.refuse(f"a {error} holds sizes")
        return wrapper
    return wrapper if value is wrapper.value else interpreter.wrap(value, provenance=wrapper.provenance)


def _is_of_sizes(fn: Any) -> bool:
    return type(fn) is FunctionType and fn.__module__ == Size.__module__


def _describe(name: str, args: Sequence[Any]) -> str:
    tensors = [each.name for each in args if hasattr(each, "name")]
    return f"{name}({', '.join(tensors)})"


def _name(fn: Any) -> str:
    return str(getattr(fn, "__name__", None) or getattr(fn, "name", None) or type(fn).__name__)


def _is_internal() -> bool:
    """True if the interpreter is in code of Thunder or fusioncache."""
    frame = interpreter.get_interpreterruntimectx().peek_frame_stack()
    return frame is not None and is_internal(frame.module)


def _is_tagging() -> bool:
    """True if Dynamo tags a new module. In a process that has used Dynamo it tags each; no program sees the tags."""
    return find_tagging().is_running(each.code for each in iterate_user_frames())


def _is_private(args: tuple[Any, ...]) -> bool:
    if len(args) < 2 or not isinstance(args[0].value, TensorProxy):
        return False
    name = args[1].value
    return isinstance(name, str) and name.startswith("_") and not name.startswith("__")


def _find_place() -> str:
    """Returns the file and line of the innermost frame outside Thunder and fusioncache; ``?`` if there is none."""
    context = interpreter._interpreterruntimectx.get(None)
    for frame in reversed(context.frame_stack if context is not None else []):
        if not is_internal(frame.module):
            return f"{frame.code.co_filename}:{frame.positions.lineno if frame.positions else '?'}"
    return "?"


def _is_interpreted(found: Any) -> bool:
    return isinstance(found, partial) and found.func is interpreter._interpret_call
