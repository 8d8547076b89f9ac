"""Journals: the operations called, tensors read and sizes looked at while Thunder interpreted a program, in order.

A replay repeats each entry at other sizes. If every guard has the same outcome there, interpreting the program would do
the same. A journal ends with Thunder's first traces, before any pass.

``replay`` returns the first traces that Thunder would make by interpreting the program at these sizes, to the letter,
names included. If a guard has another outcome, or an operation returns a result of another kind, the interpreter might
take another path: then ``replay`` raises ``Declined`` with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from fusioncache.accelerators.sizes.sizes import COMPARISONS, Expression, Number, Operation, evaluate, is_whole, plain
from fusioncache.accelerators.sizes.values import ArgumentSizes, Place, exchange, is_numel
from fusioncache.ir.errors import Declined, Scope
from fusioncache.thunder_adapter import api
from fusioncache.thunder_adapter.accelerator_api import jit_ext
from fusioncache.thunder_adapter.api import prims

FAMILY_FORMAT = 9
"""The format version of forms and of stored families, which ``accelerators/sizes/families.py`` writes."""


@dataclass(frozen=True, slots=True)
class FirstTraces:
    """The traces of a program that Thunder's interpreter makes, before any pass.

    Attributes:
        prologue: checks the guards on arguments and other reads, and unpacks the inputs.
        computation: computes the results.
        epilogue: returns the results, and stores side effects such as set attributes.
    """

    prologue: Any
    computation: Any
    epilogue: Any

    @classmethod
    def of(cls, results: Any) -> FirstTraces:
        """Returns the traces of Thunder's ``TraceResults``."""
        return cls(results.prologue_trace, results.computation_trace, results.epilogue_trace)

    def results(self) -> Any:
        """Returns them as Thunder's ``TraceResults``, with an empty log."""
        from fusioncache.thunder_adapter.accelerator_api import TraceResults

        return TraceResults(self.prologue, self.computation, self.epilogue, [])

    def describe(self) -> tuple[Any, ...]:
        """Returns all properties that passes depend on, for comparison: the text of each trace, and facts beyond it.

        Subsymbols are left out because passes change them in place. So is whether parameters have gradients, which they
        have from the second step on: if an operation reads a gradient, the text names it.
        """
        return tuple(map(_describe, (self.prologue, self.computation, self.epilogue)))

    def copy(self) -> FirstTraces:
        """Returns copies of the traces, which passes over the originals do not change."""
        return FirstTraces(*map(_copy, (self.prologue, self.computation, self.epilogue)))

    def isolate(self) -> FirstTraces:
        """Returns copies with copied input proxies: Thunder's distributed transforms write into these."""
        inputs = {proxy.name: proxy for proxy in (*self.prologue.output[0], *self.computation.args)}
        with api.tracectx(api.TraceCtx()):
            own = {api.variableify(proxy): proxy.replace() for proxy in inputs.values()}
        return FirstTraces(*(_exchange(trace, own) for trace in (self.prologue, self.computation, self.epilogue)))

    def find_names(self) -> Mapping[Place, str]:
        """Returns the proxy name of each unpacked tensor or integer among the arguments, by its place.

        Raises:
            ValueError: if an argument is unpacked twice.
        """
        unpacked = [(place, proxy.name) for place, proxy in self._list_arguments()]
        if len(dict(unpacked)) < len(unpacked):
            raise ValueError("an argument is unpacked twice")
        return dict(unpacked)

    def _list_arguments(self) -> Iterator[tuple[Place, Any]]:
        """Yields the place and the proxy of each tensor and integer that the prologue unpacks from the arguments."""
        ways: dict[str, tuple[int | str, ...]] = {"args": (), "kwargs": ()}
        for bound in self.prologue.bound_symbols:
            if bound.sym.id is api.PrimIDs.UNPACK_GETITEM and bound.args[0].name in ways:
                way = ways[bound.output.name] = (*ways[bound.args[0].name], bound.args[1])
                if isinstance(bound.output, api.TensorProxy | api.IntegerProxy):
                    yield way if len(way) > 1 else way[0], bound.output

    def with_computation(self, computation: Any, sizes: ArgumentSizes) -> FirstTraces:
        """Returns the traces for another computation that differs from this one in sizes only.

        The new prologue checks tensors for their new shapes and integers for their new values. Other checks stay.

        Args:
            computation: the other computation.
            sizes: of the arguments. They are used for integers and for tensors that the computation does not use.
        """
        arguments = [(place, proxy) for place, proxy in self._list_arguments() if place in sizes]
        inputs = {api.variableify(each): each for each in computation.args}
        with api.tracectx(api.TraceCtx()):
            integers = {
                api.variableify(proxy): proxy.replace(value=sizes[place][0])
                for place, proxy in arguments
                if isinstance(proxy, api.IntegerProxy)
            }
            # Thunder's prologue also checks arguments that the computation does not use.
            unused = {
                api.variableify(proxy): proxy.replace(shape=sizes[place])
                for place, proxy in arguments
                if isinstance(proxy, api.TensorProxy) and api.variableify(proxy) not in inputs
            }
        returned = {api.variableify(each): each for each in computation.bound_symbols[-1].args[0]}
        prologue = _exchange(self.prologue, {**inputs, **unused, **integers})
        epilogue = _exchange(self.epilogue, {**inputs, **unused, **returned})
        _check_sizes(prologue, {**inputs, **unused}, integers)
        return FirstTraces(prologue, computation, epilogue)


def _describe(trace: Any) -> tuple[Any, ...]:
    from fusioncache.accelerators.layers.block_replay import describe_value

    proxies = {
        each.name: each for bound in trace.bound_symbols for each in (*bound.flat_proxy_args, *bound.flat_proxy_outs)
    }
    unprinted = _copy(trace)
    # Thunder generates new names for unprintable objects each time that it prints a copy of their trace.
    unprinted.obj_name_ctr, unprinted.names = 0, set()
    return (
        str(unprinted.python(print_depth=1)),
        [(bound.sym.id, bound.sym.name, frozenset(bound.tags), bound.source_filename) for bound in trace.bound_symbols],
        {name: describe_value(proxy, has_gradient=False) for name, proxy in proxies.items()},
    )


def _copy(trace: Any) -> Any:
    new = api.from_trace(trace)
    new.bound_symbols = list(trace.bound_symbols)
    return new


def _exchange(trace: Any, proxies: Mapping[Any, Any]) -> Any:
    """Returns a copy of a trace in which proxies are replaced by others, found by their names."""
    return jit_ext._apply_trace_proxy_rename(trace, dict(proxies))


def _check_sizes(prologue: Any, tensors: Mapping[Any, Any], integers: Mapping[Any, Any]) -> None:
    """Updates the checks of a prologue to the shapes and values of its proxies."""
    for position, bound in enumerate(prologue.bound_symbols):
        if bound.sym.id is api.PrimIDs.CHECK_TENSOR_SHAPE_AND_METADATA and api.variableify(bound.args[0]) in tensors:
            proxy, _, *others = bound.args
            prologue.bound_symbols[position] = bound.from_bsym(args=(proxy, tuple(proxy.shape), *others))
        if bound.sym.id is api.PrimIDs.CHECK_NUMBER_TYPE_AND_VALUE and api.variableify(bound.args[0]) in integers:
            proxy, _, *others = bound.args
            prologue.bound_symbols[position] = bound.from_bsym(args=(proxy, proxy.value, *others))


@dataclass(frozen=True, slots=True)
class SizeGuard:
    """A guard: a comparison of sizes whose outcome the program depends on.

    Attributes:
        symbol: the operator, one of ``COMPARISONS``.
        left: the first number.
        right: the second number; if the value itself was used, that value.
        outcome: whether the comparison was true.
        reason: the action that used the outcome or the value.
        place: the source file and line, if known. It is not compared, as paths differ among machines.
    """

    symbol: Annotated[str, re.compile("|".join(map(re.escape, COMPARISONS)))]
    left: Expression
    right: Expression
    outcome: bool
    reason: str
    place: str = field(compare=False)

    def __str__(self) -> str:
        """Returns the place, the reason and the comparison, for messages."""
        is_so = "" if self.outcome else "not "
        # The path within an installed package suffices, and is the same on every machine.
        place = self.place.rpartition("/site-packages/")[2]
        return f"{place} {self.reason}: {is_so}{self.left} {self.symbol} {self.right}"


@dataclass(frozen=True, slots=True)
class TensorName:
    """The placeholder of a proxy in the recorded arguments or result of an operation.

    Attributes:
        name: the proxy's name at that time.
    """

    name: str


@dataclass(frozen=True, slots=True)
class OperationCall:
    """A call of an operation.

    Attributes:
        function: the Thunder function that was called.
        args: the positional arguments, with ``TensorName`` for proxies and expressions for sizes.
        kwargs: the keyword arguments in the same form.
        result: the result in the same form; each new integer in it is a variable.
        names: the trace's name counter before and after the call.
        location: the source line that the trace has for it.
        has_gradients: whether gradients were enabled.
    """

    function: Callable[..., Any]
    args: Any
    kwargs: Any
    result: Any
    names: tuple[int, int]
    location: tuple[Any, Any]
    has_gradients: bool


@dataclass(frozen=True, slots=True)
class Reading:
    """A value from outside the program that got a proxy.

    Attributes:
        proxy: the proxy.
        names: the trace's name counter before and after.
    """

    proxy: Any
    names: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Naming:
    """An assignment of a proxy to a Python variable: the proxy takes the variable's name if that is unused.

    Attributes:
        tensor: the proxy's name before.
        name: the name of the variable.
    """

    tensor: str
    name: str


type Entry = SizeGuard | OperationCall | Reading | Naming


@dataclass(slots=True)
class Journal:
    """The recorded actions of one tracing.

    Attributes:
        entries: the actions, in order.
        refusals: the reasons why it cannot be replayed at any other sizes.
        traces: Thunder's first traces; None until tracing is complete.
        renamed: the original names of proxies, by the variable names that they were renamed to.
        integers: the positions of the variables that are arguments themselves, by the arguments' places.
    """

    entries: list[Entry] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    traces: FirstTraces | None = None
    renamed: Mapping[str, str] = field(default_factory=dict)
    integers: dict[Place, int] = field(default_factory=dict)

    def refuse(self, reason: str) -> None:
        """Records a reason, without duplicates."""
        if reason not in self.refusals:
            self.refusals.append(reason)


def replay(journal: Journal, sizes: ArgumentSizes, compiled: Any) -> FirstTraces:
    """Returns Thunder's first traces at other sizes.

    Args:
        journal: of the program at some sizes.
        sizes: the new sizes of the arguments. All other inputs keep their shapes.
        compiled: Thunder's ``CompileData`` of the function.

    Raises:
        Declined: if the program has to be interpreted at these sizes, with the reason.
    """
    computation = replay_computation(journal, sizes, compiled)
    assert journal.traces is not None
    return journal.traces.with_computation(computation, sizes)


def replay_computation(journal: Journal, sizes: Mapping[Place, tuple[Any, ...]], compiled: Any) -> Any:
    """Returns the computation trace alone, at sizes that may be symbols. Otherwise see ``replay``."""
    if journal.refusals or journal.traces is None:
        raise Declined(next(iter(journal.refusals), "its replay is not complete"), Scope.LENGTH)
    performance = _Replay(*_read_sizes(journal, journal.traces, sizes))
    enabled = compiled.is_grad_enabled
    try:
        with (
            api.compile_data_and_stats(compiled, find_stats(compiled)),
            api.langctx(compiled.langctx),
            api.tracectx(performance.trace),
        ):
            for entry in journal.entries:
                performance.do(entry, compiled)
            return performance.finish(journal.traces.computation, journal.renamed)
    finally:
        compiled.is_grad_enabled = enabled


def _read_sizes(
    journal: Journal, traces: FirstTraces, sizes: Mapping[Place, tuple[Any, ...]]
) -> tuple[Mapping[str, tuple[Any, ...]], Mapping[int, Any]]:
    """Returns the shapes of the inputs by their original names, and the values of the integer arguments by position."""
    if not journal.integers.keys() <= sizes.keys():
        raise Declined("an argument is another kind of number", Scope.LENGTH)
    names = traces.find_names()
    shapes = {names[place]: each for place, each in sizes.items() if place in names and place not in journal.integers}
    numbers = {position: sizes[place][0] for place, position in journal.integers.items()}
    return {journal.renamed.get(name, name): shape for name, shape in shapes.items()}, numbers


def find_stats(compiled: Any) -> Any:
    """Returns Thunder's ``CompileStats`` of a function: without them operations cannot read compile options."""
    current, stats = api._compile_data.get()
    return stats if current is compiled and stats is not None else api.CompileStats()


class _Replay:
    """The state of a replay in progress."""

    def __init__(self, shapes: Mapping[str, tuple[Any, ...]], numbers: Mapping[int, Any]) -> None:
        self.trace = api.TraceCtx()
        self._shapes = shapes
        self._tensors: dict[str, Any] = {}
        self._numbers: dict[int, Any] = dict(numbers)
        self._renamed: dict[Any, Any] = {}
        self._known: dict[int, Any] = {}
        self._names = 0

    def do(self, entry: Any, compiled: Any) -> None:
        """Repeats an entry of the journal."""
        match entry:
            case OperationCall():
                compiled.is_grad_enabled = entry.has_gradients
                self._call(entry)
            case SizeGuard():
                self._check(entry)
            case Reading():
                self._read(entry)
            case Naming():
                self._name(entry)

    def _count_names(self, before: int) -> None:
        """Advances the name counter by as much as it advanced between two entries of the journal."""
        self.trace.name_ctr += before - self._names

    def _check(self, guard: SizeGuard) -> None:
        left, right = (evaluate(each, self._numbers) for each in (guard.left, guard.right))
        if COMPARISONS[guard.symbol](left, right) is not guard.outcome:
            raise Declined(str(guard), Scope.LENGTH)

    def _read(self, reading: Reading) -> None:
        proxy = reading.proxy
        shape = self._shapes.get(proxy.name)
        self._count_names(reading.names[0])
        self.trace.names.discard(proxy.name)
        self._tensors[proxy.name] = proxy if shape is None else _reshape(proxy, shape)
        self.trace.names.add(proxy.name)
        self._known[id(self._tensors[proxy.name])] = self._tensors[proxy.name]
        self.trace.name_ctr += reading.names[1] - reading.names[0]
        self._names = reading.names[1]

    def _name(self, naming: Naming) -> None:
        from fusioncache.thunder_adapter.accelerator_api import is_proxy_name_available

        proxy = self._tensors.get(naming.tensor)
        if proxy is None:
            raise Declined(f"the origin of {naming.tensor} is unknown", Scope.LENGTH)
        variable = api.variableify(proxy)
        if is_proxy_name_available(naming.name) and variable not in self._renamed:
            self._renamed[variable] = proxy.replace_name(naming.name)

    def _call(self, call: OperationCall) -> None:
        self._count_names(call.names[0])
        self.trace.set_current_source_location(*call.location)
        args = exchange(call.args, self._fill)
        kwargs = exchange(call.kwargs, self._fill)
        try:
            result = _find_function(call)(*args, **kwargs)
        except Exception as error:
            raise Declined(f"an operation raised {type(error).__name__}", Scope.LENGTH) from error
        self._match(call.result, result)
        self._names = call.names[1]

    def _fill(self, leaf: Any) -> Any:
        if isinstance(leaf, TensorName):
            if leaf.name not in self._tensors:
                raise Declined(f"the origin of {leaf.name} is unknown", Scope.LENGTH)
            return self._tensors[leaf.name]
        return evaluate(leaf, self._numbers) if isinstance(leaf, Number | Operation) else leaf

    def _match(self, known: Any, new: Any) -> None:
        """Records the result of an operation, if it is of the same kind as the recorded result.

        Raises:
            Declined: if it is not.
        """
        if isinstance(known, TensorName):
            if not isinstance(new, api.Proxy) or (known.name in self._tensors) is not (id(new) in self._known):
                raise Declined("an operation returned another tensor", Scope.LENGTH)
            if self._tensors.setdefault(known.name, new) is not new:
                raise Declined("an operation returned another tensor", Scope.LENGTH)
            self._known[id(new)] = new
        elif isinstance(known, Number):
            number = int(new) if is_numel(new) else new
            if type(number) is bool or not is_whole(number):
                raise Declined("an operation returned no integer", Scope.LENGTH)
            self._numbers[known.position] = number
        elif isinstance(known, tuple | list):
            if type(new) is not type(known) or len(new) != len(known):
                raise Declined("an operation returned another number of values", Scope.LENGTH)
            for one, other in zip(known, new, strict=True):
                self._match(one, other)
        elif type(known) is not type(new) or not (known is new or known == new):
            raise Declined("an operation returned another value", Scope.LENGTH)

    def finish(self, first: Any, renamed: Mapping[str, str]) -> Any:
        """Returns the computation trace, with the inputs and results that the recorded trace has.

        Args:
            first: the computation trace of the journal.
            renamed: the original names of its proxies, by their present names.
        """

        def find(proxy: Any) -> Any:
            return self._tensors[renamed.get(proxy.name, proxy.name)]

        returned = tuple(find(each) for each in first.bound_symbols[-1].args[0])
        inputs = tuple(find(each) for each in first.args)
        self.trace.set_current_source_location(None, None)
        prims.python_return(returned)
        self._count_names(first.name_ctr)
        body = self.trace.bound_symbols
        self.trace.bound_symbols = []
        self.trace.scopes = [self.trace.bound_symbols]
        with api.tracectx(self.trace):
            for proxy in inputs:
                prims.unpack_trivial(proxy, name=proxy.name)
        self.trace.bound_symbols += body
        self.trace.args = inputs
        jit_ext.update_tags(self._renamed)
        return jit_ext._apply_trace_proxy_rename(self.trace, self._renamed, "computation")


def _find_function(call: OperationCall) -> Callable[..., Any]:
    """Returns the function to call for an operation: ``getattr`` for ``numel``, an attribute if it is a symbol."""
    is_counting = call.function is api.TensorProxy.__getattr__ and tuple(call.args[1:]) == ("numel",)
    return getattr if is_counting else call.function


def _reshape(proxy: Any, shape: tuple[int, ...]) -> Any:
    """Returns a copy of a proxy with another shape.

    Raises:
        Declined: if the number of dimensions differs, or a size changes from or to 0 or 1.
    """
    if len(shape) != len(proxy.shape):
        raise Declined(f"{proxy.name} has another number of dimensions", Scope.LENGTH)
    sizes = map(plain, shape)
    if any(old != new and min(old, new) < 2 for old, new in zip(proxy.shape, sizes, strict=True)):
        raise Declined(f"{proxy.name} has a size of 0 or 1", Scope.LENGTH)
    return proxy.replace(shape=shape)
