"""What was done while a program was interpreted: operations that were called, tensors that were read, sizes looked at.

The entries are in the order in which it happened. To do the same at other sizes, each is done again; at those where
every look has the same outcome, interpreting the program would do just this. A journal ends with Thunder's first
traces, before any pass.

What Thunder's passes looked at while they went over a program, as data, and whether it is the same at other sizes.

Some of it is decided by code that is not interpreted, as by the library that has a kernel or has none. A question says
what a function is asked about, with expressions for sizes, so that it can be asked again, also in another process.

What is stored is a ``_FamilyOutline``, as ``fusioncache.ir.codec`` writes it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from types import MappingProxyType, ModuleType
from typing import Annotated, Any

from fusioncache.accelerators.sizes.sizes import (
    COMPARISONS,
    SYMBOLIC,
    Expression,
    Float,
    Integer,
    Number,
    Operation,
    evaluate,
    express,
)
from fusioncache.accelerators.sizes.values import ArgumentSizes, Place
from fusioncache.ir import codec
from fusioncache.ir.errors import Declined, Scope


@dataclass(frozen=True, slots=True)
class FirstTraces:
    """What the interpreter made of a program.

    Attributes:
        prologue: checks the arguments and what else is read, and finds the inputs.
        computation: computes.
        epilogue: returns, and stores what lasts.
    """

    prologue: Any
    computation: Any
    epilogue: Any

    @classmethod
    def of(cls, results: Any) -> FirstTraces:
        """Returns the traces of Thunder's ``TraceResults``."""
        return cls(results.prologue_trace, results.computation_trace, results.epilogue_trace)

    def results(self) -> Any:
        """Returns them as Thunder's interpreter does, with an empty log."""
        from fusioncache.thunder_adapter.accelerator_api import TraceResults

        return TraceResults(self.prologue, self.computation, self.epilogue, [])

    def describe(self) -> tuple[Any, ...]:
        """Returns all of them that passes go by, to be compared: the text of each, and what no text says.

        What operations consist of is left out, as passes change that in place, and whether parameters have gradients,
        as they have from the second step on: an operation that reads one has its name in the text.
        """
        return tuple(map(_describe, (self.prologue, self.computation, self.epilogue)))

    def copy(self) -> FirstTraces:
        """Returns the same in traces of their own, which stay as they are whatever passes do to the others."""
        return FirstTraces(*map(_copy, (self.prologue, self.computation, self.epilogue)))

    def isolate(self) -> FirstTraces:
        """Returns the same with inputs of their own: Thunder's transforms that share a model write into these."""
        from fusioncache.thunder_adapter.api import TraceCtx, tracectx, variableify

        inputs = {proxy.name: proxy for proxy in (*self.prologue.output[0], *self.computation.args)}
        with tracectx(TraceCtx()):
            own = {variableify(proxy): proxy.replace() for proxy in inputs.values()}
        return FirstTraces(*(_exchange(trace, own) for trace in (self.prologue, self.computation, self.epilogue)))

    def find_names(self) -> Mapping[Place, str]:
        """Returns the name of each value that is an argument by itself, and that the program has asked for.

        Raises:
            ValueError: if one has two names.
        """
        unpacked = [(place, proxy.name) for place, proxy in self._list_arguments()]
        if len(dict(unpacked)) < len(unpacked):
            raise ValueError("an argument is unpacked twice")
        return dict(unpacked)

    def _list_arguments(self) -> Iterator[tuple[Place, Any]]:
        """Yields the place and the proxy of each argument that has sizes, as the prologue unpacks them."""
        from fusioncache.thunder_adapter.api import IntegerProxy, PrimIDs, TensorProxy

        ways: dict[str, tuple[int | str, ...]] = {"args": (), "kwargs": ()}
        for bound in self.prologue.bound_symbols:
            if bound.sym.id is PrimIDs.UNPACK_GETITEM and bound.args[0].name in ways:
                way = ways[bound.output.name] = (*ways[bound.args[0].name], bound.args[1])
                if isinstance(bound.output, TensorProxy | IntegerProxy):
                    yield way if len(way) > 1 else way[0], bound.output

    def inputs(self) -> tuple[Any, ...]:
        """Returns the proxies that the computation is given."""
        return tuple(self.computation.args)

    def with_computation(self, computation: Any, sizes: ArgumentSizes) -> FirstTraces:
        """Returns them for another computation, which differs from this one in sizes only.

        The prologue checks the inputs for their new shapes, integers for their new values, and all else as it did.

        Args:
            computation: the other one.
            sizes: of the arguments, of which those are read that are integers, or that the computation does without.
        """
        from fusioncache.thunder_adapter.api import IntegerProxy, TensorProxy, TraceCtx, tracectx, variableify

        arguments = [(place, proxy) for place, proxy in self._list_arguments() if place in sizes]
        inputs = {variableify(each): each for each in computation.args}
        with tracectx(TraceCtx()):
            integers = {
                variableify(proxy): proxy.replace(value=sizes[place][0])
                for place, proxy in arguments
                if isinstance(proxy, IntegerProxy)
            }
            # Thunder checks each argument, whether or not anything is computed of it.
            unused = {
                variableify(proxy): proxy.replace(shape=sizes[place])
                for place, proxy in arguments
                if isinstance(proxy, TensorProxy) and variableify(proxy) not in inputs
            }
        returned = {variableify(each): each for each in computation.bound_symbols[-1].args[0]}
        prologue = _exchange(self.prologue, {**inputs, **unused, **integers})
        epilogue = _exchange(self.epilogue, {**inputs, **unused, **returned})
        _check_sizes(prologue, {**inputs, **unused}, integers)
        return FirstTraces(prologue, computation, epilogue)


def _describe(trace: Any) -> tuple[Any, ...]:
    from fusioncache.accelerators.layers.stamping import describe_value

    proxies = {
        each.name: each for bound in trace.bound_symbols for each in (*bound.flat_proxy_args, *bound.flat_proxy_outs)
    }
    unprinted = _copy(trace)
    # Thunder gives objects without a text new names each time that it prints a copy of their trace.
    unprinted.obj_name_ctr, unprinted.names = 0, set()
    return (
        str(unprinted.python(print_depth=1)),
        [(bound.sym.id, bound.sym.name, frozenset(bound.tags), bound.source_filename) for bound in trace.bound_symbols],
        {name: describe_value(proxy, has_gradient=False) for name, proxy in proxies.items()},
    )


def _copy(trace: Any) -> Any:
    from fusioncache.thunder_adapter.api import from_trace

    new = from_trace(trace)
    new.bound_symbols = list(trace.bound_symbols)
    return new


def _exchange(trace: Any, proxies: Mapping[Any, Any]) -> Any:
    """Returns a copy of a trace with other proxies in place of those of the same names."""
    from fusioncache.thunder_adapter.accelerator_api import _apply_trace_proxy_rename

    return _apply_trace_proxy_rename(trace, dict(proxies))


def _check_sizes(prologue: Any, tensors: Mapping[Any, Any], integers: Mapping[Any, Any]) -> None:
    """Has a prologue check the shapes and the values that its proxies have."""
    from fusioncache.thunder_adapter.api import PrimIDs, variableify

    for position, bound in enumerate(prologue.bound_symbols):
        if bound.sym.id is PrimIDs.CHECK_TENSOR_SHAPE_AND_METADATA and variableify(bound.args[0]) in tensors:
            proxy, _, *others = bound.args
            prologue.bound_symbols[position] = bound.from_bsym(args=(proxy, tuple(proxy.shape), *others))
        if bound.sym.id is PrimIDs.CHECK_NUMBER_TYPE_AND_VALUE and variableify(bound.args[0]) in integers:
            proxy, _, *others = bound.args
            prologue.bound_symbols[position] = bound.from_bsym(args=(proxy, proxy.value, *others))


@dataclass(frozen=True, slots=True)
class Look:
    """Something that depends on how two numbers compare.

    Attributes:
        symbol: one of ``COMPARISONS``.
        left: the first number.
        right: the second one; where the value itself was asked for, the value that it had.
        outcome: whether it was true.
        reason: what the program did.
        place: the file and the line of source, where known.
    """

    symbol: Annotated[str, re.compile("|".join(map(re.escape, COMPARISONS)))]
    left: Expression
    right: Expression
    outcome: bool
    reason: str
    place: str

    def __str__(self) -> str:
        """Returns what was looked at, by what, where."""
        is_so = "" if self.outcome else "not "
        # Of an installed package its own path says enough, and is the same on every machine.
        place = self.place.rpartition("/site-packages/")[2]
        return f"{place} {self.reason}: {is_so}{self.left} {self.symbol} {self.right}"


@dataclass(frozen=True, slots=True)
class TensorName:
    """A place in the arguments or the result of an operation that a proxy stands at.

    Attributes:
        name: the name that the proxy had.
    """

    name: str


@dataclass(frozen=True, slots=True)
class OperationCall:
    """An operation that was called.

    Attributes:
        function: the function of Thunder's that was called.
        args: what with: tensors and expressions in the places of proxies and sizes, all else as it was.
        kwargs: and by keyword.
        result: what it returned; each integer in it is a number that has a position.
        names: how many names had been counted off before, and after.
        location: the line of source that the trace has for it.
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
    """A value from outside that was given a proxy.

    Attributes:
        proxy: the proxy.
        names: how many names had been counted off before, and after.
    """

    proxy: Any
    names: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Naming:
    """A variable that a proxy was stored in: its name is the proxy's from then on, if that is free.

    Attributes:
        tensor: the name that the proxy had.
        name: the name of the variable.
    """

    tensor: str
    name: str


type Entry = Look | OperationCall | Reading | Naming


@dataclass(slots=True)
class Journal:
    """What happened in one trace.

    Attributes:
        entries: in order.
        refusals: why this cannot be done again at other sizes, whichever.
        traces: Thunder's first traces; None before all is done.
        renamed: the names that proxies had while they were made, by those of variables that they were given later.
        integers: the positions of numbers that are arguments themselves, by their places.
    """

    entries: list[Entry] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    traces: FirstTraces | None = None
    renamed: Mapping[str, str] = field(default_factory=dict)
    integers: dict[Place, int] = field(default_factory=dict)

    def looks(self) -> tuple[Look, ...]:
        """Returns the looks, each once."""
        return tuple(dict.fromkeys(each for each in self.entries if isinstance(each, Look)))

    def refuse(self, reason: str) -> None:
        """Notes a reason, once."""
        if reason not in self.refusals:
            self.refusals.append(reason)


DECIDERS: Mapping[str, str] = MappingProxyType(
    {
        "_fused_sdp_choice": "thunder.executors.utils",
        "can_attend_with_cudnn": "fusioncache.accelerators.attention.executor",
    }
)
"""The functions that decide by sizes, and by what else they are asked about, each with the module that has it."""


@dataclass(frozen=True, slots=True)
class AskedTensor:
    """A tensor that something is decided about.

    Attributes:
        shape: its sizes.
        device: that it is on, as torch writes it.
        dtype: the name that its type has in torch.
        requires_grad: whether it needs a gradient.
    """

    shape: tuple[Expression, ...]
    device: str
    dtype: Annotated[str, re.compile(r"[a-z]\w*")]
    requires_grad: bool


type Asked = AskedTensor | Integer | Float | Number | Operation | bool | float | None
"""What one argument of a question is."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Something that was decided.

    Attributes:
        function: decides: one of ``DECIDERS``.
        args: what it was asked about.
        answer: what it decided, as Python writes it.
    """

    function: Annotated[str, re.compile("|".join(DECIDERS))]
    args: tuple[Asked, ...]
    answer: str

    def ask(self, numbers: Mapping[int, int]) -> str:
        """Returns what is decided where numbers have these values, by their positions.

        Raises:
            ValueError: if no module decides it.
        """
        if self.function not in DECIDERS:
            raise ValueError(f"{self.function} decides nothing")
        return str(decide(getattr(find_home(self.function), self.function), self.args, numbers))


def find_home(decider: str) -> ModuleType:
    """Returns the module of one of ``DECIDERS``, where its users look it up."""
    return import_module(DECIDERS[decider])


def decide(function: Callable[..., Any], args: tuple[Asked, ...], numbers: Mapping[int, int]) -> Any:
    """Returns what a function decides where numbers have these values."""
    from fusioncache.thunder_adapter.api import TraceCtx, tracectx

    with tracectx(TraceCtx()):
        return function(*(_fill(each, numbers) for each in args))


def describe_asked(arg: Any) -> Asked:
    """Returns an argument of a question as data.

    Raises:
        TypeError: if it is of a kind that is not known.
    """
    from fusioncache.thunder_adapter.api import TensorProxy, to_torch_dtype

    if isinstance(arg, TensorProxy):
        dtype = str(to_torch_dtype(arg.dtype)).removeprefix("torch.")
        return AskedTensor(tuple(map(express, arg.shape)), arg.device.device_str(), dtype, bool(arg.requires_grad))
    if type(arg) in SYMBOLIC:
        return arg.expression
    if arg is None or type(arg) in (bool, int, float):
        return arg  # type: ignore[no-any-return]
    raise TypeError(f"something is decided about a {type(arg).__name__}")


def _fill(asked: Asked, numbers: Mapping[int, int]) -> Any:
    if isinstance(asked, AskedTensor):
        return _make_proxy(asked, numbers)
    return evaluate(asked, numbers) if isinstance(asked, Number | Operation) else asked


def _make_proxy(asked: AskedTensor, numbers: Mapping[int, int]) -> Any:
    import torch

    from fusioncache.thunder_adapter.api import TensorProxy, devices, dtypes

    return TensorProxy(
        shape=tuple(evaluate(size, numbers) for size in asked.shape),
        device=devices.to_device(asked.device),
        dtype=dtypes.to_dtype(getattr(torch, asked.dtype)),
        requires_grad=asked.requires_grad,
    )


type Expressions = tuple[Expression, ...]

_NO_SHAPES: Mapping[str, Expressions] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class PassJournal:
    """What Thunder's passes did with the sizes of one program.

    Attributes:
        sizes: of each argument, by its place: numbers of which this is about, and those that may be no others.
        looks: comparisons.
        unequal: arguments of operations that would be the same operation if they were equal.
        decisions: of others.
        expressions: each that may be in a final trace or a region.
        shapes: of tensors with a size that is none of these, by name: operations on them run as a whole.
    """

    sizes: Mapping[Place, tuple[int | Number, ...]]
    looks: tuple[Look, ...]
    unequal: tuple[tuple[Expressions, Expressions], ...]
    decisions: tuple[Decision, ...]
    expressions: frozenset[Expression]
    shapes: Mapping[str, tuple[Expression, ...]] = _NO_SHAPES

    def check(self, arguments: ArgumentSizes) -> Mapping[int, int]:
        """Returns the value of each number where the arguments have these sizes.

        Raises:
            Declined: if the passes might do something else there.
        """
        numbers = self.read(arguments)
        try:
            self._check(numbers)
        except ArithmeticError as error:
            raise Declined(str(error), Scope.LENGTH) from error
        return numbers

    def _check(self, numbers: Mapping[int, int]) -> None:
        for look in self.looks:
            left, right = (evaluate(each, numbers) for each in (look.left, look.right))
            if COMPARISONS[look.symbol](left, right) is not look.outcome:
                raise Declined(f"a Thunder pass may do something else: {look}", Scope.LENGTH)
        for one, other in self.unequal:
            if all(evaluate(left, numbers) == evaluate(right, numbers) for left, right in zip(one, other, strict=True)):
                raise Declined("two operations become the same at these sizes", Scope.LENGTH)
        for decision in self.decisions:
            if decision.ask(numbers) != decision.answer:
                raise Declined(f"{decision.function} decides otherwise", Scope.LENGTH)

    def can_compute_all(self, numbers: Mapping[int, int]) -> bool:
        """True if there is each number of the final traces where sizes have these values."""
        try:
            return all(evaluate(each, numbers) is not None for each in self.expressions)
        except ArithmeticError:
            return False

    def read(self, arguments: ArgumentSizes) -> Mapping[int, int]:
        """Returns the value of each number where the arguments have these sizes.

        Raises:
            Declined: if a size is another one that is no number.
        """
        if arguments.keys() != self.sizes.keys():
            raise Declined("there are other arguments", Scope.LENGTH)
        numbers: dict[int, int] = {}
        for place, sizes in self.sizes.items():
            for size, value in zip(sizes, arguments[place], strict=True):
                if isinstance(size, Number) and value > 1:
                    numbers[size.position] = value
                elif size != value:
                    raise Declined(f"a size is {value}", Scope.LENGTH)
        return numbers


FAMILY_FORMAT = 6
"""Of a form, and of what is stored for it: what is written here, and in ``accelerators/sizes/families.py``."""


@dataclass(frozen=True, slots=True)
class _FamilyOutline:
    """What is stored of a family beside its programs. Attributes are as in ``PassJournal``, in a fixed order.

    Attributes:
        known: the sizes of the arguments of each program.
    """

    sizes: tuple[tuple[Place, tuple[int | Number, ...]], ...]
    looks: tuple[Look, ...]
    unequal: tuple[tuple[Expressions, Expressions], ...]
    decisions: tuple[Decision, ...]
    expressions: Expressions
    shapes: Mapping[str, Expressions]
    known: tuple[tuple[tuple[Place, tuple[int, ...]], ...], ...]

    def validate(self) -> None:
        """Checks what types do not say.

        Raises:
            ValueError: if a number is not the size of one argument, or lists differ in length.
        """
        numbers = [size for _, sizes in self.sizes for size in sizes if isinstance(size, Number)]
        used = _find_numbers((self.looks, self.unequal, self.decisions, self.expressions, *self.shapes.values()))
        if len({each.position for each in numbers}) != len(numbers) or not set(used) <= set(numbers):
            raise ValueError("does not have all numbers, each once")
        if any(len(one) != len(other) for one, other in self.unequal):
            raise ValueError("compares lists of two lengths")
        _check_places([place for place, _ in self.sizes])
        if any(list(map(_count, each)) != list(map(_count, self.sizes)) for each in self.known):
            raise ValueError("has sizes of other arguments")


def encode_outline(passes: PassJournal, sizes: Sequence[ArgumentSizes]) -> bytes:
    """Returns what passes looked at, and the sizes of the programs that a family is made of. Equal ones are equal.

    Raises:
        ValueError: if there is a number in it that JSON has not.
    """
    outline = _FamilyOutline(
        tuple(passes.sizes.items()),
        passes.looks,
        passes.unequal,
        passes.decisions,
        tuple(sorted(passes.expressions, key=repr)),
        passes.shapes,
        tuple(tuple(each.items()) for each in sizes),
    )
    return codec.encode(outline, format=FAMILY_FORMAT)


def decode_outline(content: bytes) -> tuple[PassJournal, tuple[ArgumentSizes, ...]]:
    """Returns what ``encode_outline`` was given.

    Raises:
        ValueError: if this is anything else.
    """
    found = codec.decode(_FamilyOutline, content, "family", format=FAMILY_FORMAT)
    expressions = frozenset(found.expressions)
    passes = PassJournal(dict(found.sizes), found.looks, found.unequal, found.decisions, expressions, found.shapes)
    return passes, tuple(map(dict, found.known))


def _find_numbers(value: Any) -> Iterator[Number]:
    """Yields the numbers in looks, decisions and expressions."""
    if isinstance(value, Number):
        yield value
    elif isinstance(value, tuple):
        for each in value:
            yield from _find_numbers(each)
    elif isinstance(value, Look | Operation):
        yield from _find_numbers((value.left, value.right))
    elif isinstance(value, Decision | AskedTensor):
        yield from _find_numbers(value.args if isinstance(value, Decision) else value.shape)


def _check_places(places: Sequence[Place]) -> None:
    keys = [key for place in places for key in (place if isinstance(place, tuple) else (place,))]
    is_deep = all(len(place) > 1 for place in places if isinstance(place, tuple))
    if len(set(places)) < len(places) or not is_deep or any(isinstance(key, int) and key < 0 for key in keys):
        raise ValueError("does not have arguments, each once")


def _count(sizes: tuple[Place, tuple[Any, ...]]) -> tuple[Place, int]:
    return sizes[0], len(sizes[1])
