"""The operations of a journal called again at other sizes: Thunder's own functions, with all that they check.

What comes out is the first trace that Thunder would make by interpreting the program at these sizes, to the letter,
names included. Where a look has another outcome, or an operation returns something of another kind, interpreting might
go another way: that is said, and no trace is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fusioncache.accelerators.sizes.arguments import ArgumentSizes, Place
from fusioncache.accelerators.sizes.expressions import COMPARISONS, Expression, Number, Operation, evaluate
from fusioncache.accelerators.sizes.first_traces import FirstTraces
from fusioncache.accelerators.sizes.journal import Journal, Look, Naming, OperationCall, Reading, TensorName
from fusioncache.accelerators.sizes.numel import is_numel
from fusioncache.accelerators.sizes.sizes import is_whole, plain
from fusioncache.accelerators.sizes.structure import exchange
from fusioncache.ir.errors import Declined, Scope


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
