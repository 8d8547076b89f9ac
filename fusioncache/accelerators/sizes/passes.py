"""The operations of a journal called again at other sizes, and Thunder's passes gone through with symbols for sizes.

What ``replay`` makes is the first trace that Thunder would make by interpreting the program at these sizes, to the
letter, names included. Where a look has another outcome, or an operation returns something of another kind,
interpreting might go another way: that is said, and no trace is made.

A pass computes with sizes and compares them: whether two shapes are equal, whether one broadcasts. Where all
comparisons come out the same at other sizes, and each decision is the same, the passes do the same, and each number in
the final traces is one of the expressions that are in these traces. What is gone through with symbols is thrown away
but for that: no program is made of it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import combinations
from typing import Any

from fusioncache.accelerators.sizes.hooks import LISTENER, know_symbols
from fusioncache.accelerators.sizes.journal import (
    Decision,
    Expressions,
    FirstTraces,
    Journal,
    Look,
    Naming,
    OperationCall,
    PassJournal,
    Reading,
    TensorName,
    decide,
    describe_asked,
)
from fusioncache.accelerators.sizes.sizes import (
    COMPARISONS,
    SYMBOLIC,
    Expression,
    Float,
    Number,
    Operation,
    SymbolicSize,
    Witness,
    evaluate,
    express,
    is_whole,
    plain,
)
from fusioncache.accelerators.sizes.values import ArgumentSizes, Place, exchange, is_numel, name_argument
from fusioncache.ir.errors import Declined, Scope


def go_through_passes(
    journal: Journal, sizes: ArgumentSizes, compiled: Any, then: Callable[[Any], None] = lambda trace: None
) -> PassJournal:
    """Has Thunder's passes go over a program once more, and notes what they do with sizes.

    Args:
        journal: how the program was made.
        sizes: of the arguments.
        compiled: what Thunder knows of the function.
        then: is given each final trace, and looks at all sizes at which whatever comes behind Thunder's passes looks.

    Raises:
        Declined: if the operations cannot be called again.
        Exception: if a pass cannot do with symbols.
    """
    from fusioncache.thunder_adapter.api import compile_data_and_stats, langctx

    numbered = dict(_number(sizes))
    witness = PassWitness()
    token = LISTENER.set(witness)
    try:
        with know_symbols(), compile_data_and_stats(compiled, find_stats(compiled)), langctx(compiled.langctx):
            symbols = {place: witness.make_symbols(each, sizes[place]) for place, each in numbered.items()}
            traces = _apply(_share(journal, perform(journal, symbols, compiled), symbols, compiled), compiled)
            for trace in traces:
                then(trace)
        found = Findings(symbol for trace in traces for symbol in trace.bound_symbols)
    finally:
        LISTENER.reset(token)
        witness.is_done = True
    expressions = found.expressions | {size for each in numbered.values() for size in each}
    looks, unequal, decisions = tuple(witness.looks), tuple(found.unequal()), tuple(witness.decisions)
    return PassJournal(numbered, looks, unequal, decisions, frozenset(expressions), found.list_shapes(expressions))


def _number(arguments: ArgumentSizes) -> Iterator[tuple[Place, tuple[int | Number, ...]]]:
    """Yields the sizes of each argument: a number for each that may be another one."""
    count = 0
    for place, values in arguments.items():
        sizes: list[int | Number] = []
        for dimension, size in enumerate(values):
            count += 1
            sizes.append(Number(count, f"{name_argument(place)}[{dimension}]") if size > 1 else size)
        yield place, tuple(sizes)


class PassWitness(Witness):
    """Notes what passes look at."""

    def __init__(self) -> None:
        self.looks: dict[Look, None] = {}
        self.decisions: list[Decision] = []
        self.is_done = False
        self._numbers: dict[int, int] = {}
        self._answers: dict[str, Any] = {}
        self._seen: set[tuple[Any, ...]] = set()

    def make_symbols(self, sizes: tuple[int | Number, ...], shape: tuple[int, ...]) -> tuple[Any, ...]:
        """Returns a shape with a symbol for each number, of which looks are told to this."""
        pairs = tuple(zip(sizes, shape, strict=True))
        self._numbers |= {size.position: value for size, value in pairs if isinstance(size, Number)}
        return tuple(SymbolicSize(value, size, self) if isinstance(size, Number) else size for size, value in pairs)

    def refuse(self, reason: str) -> None:
        """Ends the passes: nothing can be said of other sizes.

        Raises:
            Declined: always.
        """
        raise Declined(reason, Scope.LENGTH)

    def look(self, symbol: str, left: Expression, right: Expression, outcome: bool, reason: str) -> None:
        """Notes that something depends on how two numbers compare, once."""
        what = symbol, left, right, outcome
        if self.is_done or what in self._seen or left == right:
            return
        self._seen.add(what)
        self.looks[Look(*what, reason, _find_place())] = None

    def decide(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Has something decided for plain sizes, and notes what was decided.

        Raises:
            Declined: if it could not be asked for again.
        """
        name = function.__name__
        try:
            asked = tuple(map(describe_asked, args))
        except TypeError as error:
            raise Declined(str(error), Scope.LENGTH) from error
        # As text, in which 1, 1.0 and True are not the same.
        question = f"{name}{asked}"
        if question not in self._answers:
            answer = decide(function, asked, self._numbers)
            self._answers[question] = answer
            self.decisions.append(Decision(name, asked, str(answer)))
        return self._answers[question]


def _find_place() -> str:
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals["__name__"].startswith(__package__):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _share(journal: Journal, computation: Any, symbols: Mapping[Place, tuple[Any, ...]], compiled: Any) -> Any:
    """Returns the trace of a computation as those transforms leave it that share the model between ranks."""
    from fusioncache.thunder_adapter.accelerator_api import transform_common

    computation = transform_common.wrap_return_value_together_with_arguments(computation)
    computation = transform_common.remove_context_manager_prims_from_trace(computation)
    sharing = list_sharing(compiled)
    if not sharing:
        return computation
    assert journal.traces is not None
    traces = journal.traces.with_computation(computation, symbols).isolate()
    shared = traces.prologue, traces.computation, traces.epilogue
    for transform in sharing:
        shared = transform.transform_traces_pre_prologue(*shared, executors_list=compiled.executors_list)
    return shared[1]


def list_sharing(compiled: Any) -> list[Any]:
    """Returns Thunder's own transforms that share a model between ranks. What they do depends on no argument's size."""
    from fusioncache.thunder_adapter.accelerator_api import DDPTransform, FSDPTransform

    return [each for each in compiled.transforms or () if type(each) in (DDPTransform, FSDPTransform)]


def _apply(trace: Any, compiled: Any) -> list[Any]:
    """Applies Thunder's passes as ``thunder.jit`` does; returns the final traces: forward, and backward if any."""
    from fusioncache.thunder_adapter.accelerator_api import (
        _transform_for_operator_executor_execution,
        grad_transform_on_trace,
        maybe_sort_waits,
        split_into_forward_and_backward,
        transform_common,
        transform_for_execution,
    )
    from fusioncache.thunder_adapter.api import TensorProxy

    executors = compiled.executors_list
    trace = transform_common.dce(trace)
    is_differentiable = not compiled.disable_torch_autograd_support
    has_gradients = is_differentiable and any(isinstance(a, TensorProxy) and a.requires_grad for a in trace.args)
    trace = grad_transform_on_trace(trace) if has_gradients else trace
    has_waits, sorted_trace = maybe_sort_waits(_transform_for_operator_executor_execution(trace, executors))
    trace = sorted_trace if has_waits else trace
    trace = transform_for_execution(trace, executors_list=executors, use_del_last_used=False)[-1]
    if not has_gradients:
        return [trace]
    # Parameters may ask for gradients under no_grad as well: there is nothing to go back through then.
    return [each for each in split_into_forward_and_backward(trace) if each is not None]


_OPEN = frozenset({"torch", "python"})
"""Executors whose operations have arguments that passes of ours make others of."""
_MOVING = ("unpack", "python_return", "python_del", "clear_")
"""What the names of symbols begin with that hand tensors on and do nothing with them."""


def _runs_whole(symbol: Any) -> bool:
    """True if a symbol is in a program as it is: the sizes of its tensors are seen in comments alone."""
    executor = symbol.sym.executor
    is_whole = executor is not None and not symbol.sym.is_fusion and executor.name not in _OPEN
    return is_whole or symbol.sym.name.startswith(_MOVING)


class Findings:
    """What is in final traces.

    Attributes:
        expressions: of all sizes that may be in a program, but in comments.
    """

    def __init__(self, symbols: Iterator[Any]) -> None:
        self.expressions: set[Expression] = set()
        self._shapes: dict[str, Expressions] = {}
        self._alike: dict[Any, dict[Expressions, tuple[int, ...]]] = {}
        for symbol in symbols:
            self._see(symbol)

    def _see(self, symbol: Any) -> None:
        blank, sizes, values = [symbol.sym.id or symbol.sym.name], [], []
        is_whole = _runs_whole(symbol)
        for leaf in (*symbol.flat_args, *symbol.flat_outs):
            self._find(leaf, is_whole=is_whole)
        for leaf in symbol.flat_args:
            if type(leaf) in (*SYMBOLIC, int, float):
                sizes.append(express(leaf))
                values.append(plain(leaf))
                blank.append(Number)
            else:
                blank.append(getattr(leaf, "name", None) or repr(leaf))
        if sizes:
            self._alike.setdefault(tuple(blank), {})[tuple(sizes)] = tuple(values)
        for each in symbol.subsymbols:
            self._see(each)

    def _find(self, leaf: Any, *, is_whole: bool) -> None:
        shape, name = getattr(leaf, "shape", None), getattr(leaf, "name", None)
        if shape is not None and is_whole and isinstance(name, str):
            self._shapes[name] = tuple(map(express, shape))
            return
        self.expressions.update(size.expression for size in shape or (leaf,) if type(size) in SYMBOLIC)

    def list_shapes(self, expressions: Collection[Expression]) -> dict[str, Expressions]:
        """Returns the shapes of tensors, by name, in which there is more than constants and these expressions."""
        return {
            name: shape
            for name, shape in self._shapes.items()
            if not all(isinstance(size, int) or size in expressions for size in shape)
        }

    def unequal(self) -> Iterator[tuple[Expressions, Expressions]]:
        """Yields arguments of two operations that differ in sizes alone, and might not at other sizes."""
        for known in self._alike.values():
            for one, other in combinations(known, 2):
                parts = [(left, right) for left, right in zip(one, other, strict=True) if left != right]
                is_certain = any(_never_equal(left, right) for left, right in parts)
                if known[one] != known[other] and not is_certain:
                    yield tuple(left for left, _ in parts), tuple(right for _, right in parts)


def _never_equal(one: Expression, other: Expression) -> bool:
    """True if two expressions are constants that Thunder tells apart, as it does not 1 and 1.0."""
    are_constant = isinstance(one, int | Float) and isinstance(other, int | Float)
    return are_constant and evaluate(one, {}) != evaluate(other, {})


def replay(journal: Journal, sizes: ArgumentSizes, compiled: Any) -> FirstTraces:
    """Returns Thunder's first traces at other sizes.

    Args:
        journal: what happened at some sizes.
        sizes: of the arguments. All other inputs keep theirs.
        compiled: what Thunder knows of the function.

    Raises:
        Declined: if the program has to be interpreted at these sizes, with the reason.
    """
    computation = perform(journal, sizes, compiled)
    assert journal.traces is not None
    return journal.traces.with_computation(computation, sizes)


def perform(journal: Journal, sizes: Mapping[Place, tuple[Any, ...]], compiled: Any) -> Any:
    """Returns the trace of the computation alone, at sizes that may be symbols. See ``replay`` for all else."""
    from fusioncache.thunder_adapter.api import compile_data_and_stats, langctx, tracectx

    if journal.refusals or journal.traces is None:
        raise Declined(next(iter(journal.refusals), "its replay is not complete"), Scope.LENGTH)
    performance = _Performance(*_read_sizes(journal, journal.traces, sizes))
    enabled = compiled.is_grad_enabled
    try:
        with (
            compile_data_and_stats(compiled, find_stats(compiled)),
            langctx(compiled.langctx),
            tracectx(performance.trace),
        ):
            for entry in journal.entries:
                performance.do(entry, compiled)
            return performance.finish(journal.traces.computation, journal.renamed)
    finally:
        compiled.is_grad_enabled = enabled


def _read_sizes(
    journal: Journal, traces: FirstTraces, sizes: Mapping[Place, tuple[Any, ...]]
) -> tuple[Mapping[str, tuple[Any, ...]], Mapping[int, Any]]:
    """Returns the shapes of the inputs, by the names that they have first, and the values of numbers."""
    if not journal.integers.keys() <= sizes.keys():
        raise Declined("an argument is another kind of number", Scope.LENGTH)
    names = traces.find_names()
    shapes = {names[place]: each for place, each in sizes.items() if place in names and place not in journal.integers}
    numbers = {position: sizes[place][0] for place, position in journal.integers.items()}
    return {journal.renamed.get(name, name): shape for name, shape in shapes.items()}, numbers


def find_stats(compiled: Any) -> Any:
    """Returns what Thunder counts for a function: without it an operation that asks for an option is told of none."""
    from fusioncache.thunder_adapter.accelerator_api import _compile_data
    from fusioncache.thunder_adapter.api import CompileStats

    current, stats = _compile_data.get()
    return stats if current is compiled and stats is not None else CompileStats()


class _Performance:
    """One replay, while it is going on."""

    def __init__(self, shapes: Mapping[str, tuple[Any, ...]], numbers: Mapping[int, Any]) -> None:
        from fusioncache.thunder_adapter.api import TraceCtx

        self.trace = TraceCtx()
        self._shapes = shapes
        self._tensors: dict[str, Any] = {}
        self._numbers: dict[int, Any] = dict(numbers)
        self._renamed: dict[Any, Any] = {}
        self._known: dict[int, Any] = {}
        self._names = 0

    def do(self, entry: Any, compiled: Any) -> None:
        """Does what an entry says, as at the first sizes."""
        match entry:
            case OperationCall():
                compiled.is_grad_enabled = entry.has_gradients
                self._call(entry)
            case Look():
                self._look(entry)
            case Reading():
                self._read(entry)
            case Naming():
                self._name(entry)

    def _count_names(self, before: int) -> None:
        """Counts off the names that were counted off between two entries."""
        self.trace.name_ctr += before - self._names

    def _look(self, look: Look) -> None:
        left, right = (self._evaluate(each) for each in (look.left, look.right))
        if COMPARISONS[look.symbol](left, right) is not look.outcome:
            raise Declined(str(look), Scope.LENGTH)

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
        from fusioncache.thunder_adapter.api import variableify

        proxy = self._tensors.get(naming.tensor)
        if proxy is None:
            raise Declined(f"the origin of {naming.tensor} is unknown", Scope.LENGTH)
        variable = variableify(proxy)
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
        return self._evaluate(leaf) if isinstance(leaf, Number | Operation) else leaf

    def _evaluate(self, expression: Expression) -> Any:
        try:
            return evaluate(expression, self._numbers)
        except ArithmeticError as error:
            raise Declined(str(error), Scope.LENGTH) from error

    def _match(self, known: Any, new: Any) -> None:
        """Notes what an operation returned, where it returned something of the same kind as at the first sizes."""
        if isinstance(known, TensorName):
            from fusioncache.thunder_adapter.api import Proxy

            if not isinstance(new, Proxy) or (known.name in self._tensors) is not (id(new) in self._known):
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
        """Returns the trace, with the inputs and the results of the first one.

        Args:
            first: the trace at the first sizes.
            renamed: the names that proxies had there while they were made, by those that they have.
        """
        from fusioncache.thunder_adapter.accelerator_api import _apply_trace_proxy_rename, update_tags
        from fusioncache.thunder_adapter.api import prims, tracectx

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
        with tracectx(self.trace):
            for proxy in inputs:
                prims.unpack_trivial(proxy, name=proxy.name)
        self.trace.bound_symbols += body
        self.trace.args = inputs
        update_tags(self._renamed)
        return _apply_trace_proxy_rename(self.trace, self._renamed, "computation")


def _find_function(call: OperationCall) -> Callable[..., Any]:
    """Returns what does an operation: a tensor has the number of its elements as an attribute if that is a symbol."""
    from fusioncache.thunder_adapter.api import TensorProxy

    is_counting = call.function is TensorProxy.__getattr__ and tuple(call.args[1:]) == ("numel",)
    return getattr if is_counting else call.function


def _reshape(proxy: Any, shape: tuple[int, ...]) -> Any:
    """Returns a proxy that is the same but for its shape."""
    if len(shape) != len(proxy.shape):
        raise Declined(f"{proxy.name} has another number of dimensions", Scope.LENGTH)
    sizes = map(plain, shape)
    if any(old != new and min(old, new) < 2 for old, new in zip(proxy.shape, sizes, strict=True)):
        raise Declined(f"{proxy.name} has a size of 0 or 1", Scope.LENGTH)
    return proxy.replace(shape=shape)
