"""A graph as Thunder's bound symbols, for all that Thunder itself can lower, and bound symbols as a function."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from fusioncache.backends.alike_sources import FUNCTION, Source, merge_sources
from fusioncache.backends.literals import decode, fixed_gpus, is_here, thunder_dtype
from fusioncache.backends.symbols import symbol_named
from fusioncache.ir import Const, GeneralRegion, Graph, NumberType, Op, Ref, TensorType, Value, ValueType

_NO_SIZE, _NO_DIFFERENCE = 1_000_003, 10_007
"""The value that the first symbolic size has for Thunder, and how much larger each one is than the one before. It is
nobody's size, and neither is what is left of two, so that it shows where it passes for one."""


class _AnySize(int):
    """The value of a symbolic size. It equals that of each other one, as sizes that Thunder compares have to be equal.

    What is computed of two is a plain integer.
    """

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _AnySize) or int(self) == other

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(int(self))


@dataclass(frozen=True, slots=True)
class BoundGraph:
    """A graph in Thunder's terms: ``bound_symbols`` lead from the proxies ``inputs`` to the proxies ``outputs``."""

    inputs: tuple[Any, ...]
    bound_symbols: tuple[Any, ...]
    outputs: tuple[Any, ...]


def bind(graph: Graph, gpu: int = 0, numbers: Mapping[int, Any] = MappingProxyType({})) -> BoundGraph:
    """Writes a graph with proxies of its own, named by their numbers.

    Args:
        graph: without parameters.
        gpu: the number of the one that inputs lie on.
        numbers: the values of inputs that are used in place of their proxies.

    Raises:
        KeyError: if this Thunder has no operation of that name.
    """
    from fusioncache.thunder_adapter.api import TraceCtx, tracectx

    with tracectx(TraceCtx(None)), _symbolic_sizes() if graph.sizes else nullcontext():
        proxies: dict[int, Any] = {}
        for number in range(len(graph.inputs), graph.first_result):
            proxies[number] = _proxy(f"i{number}", NumberType("int"), proxies)
        inputs = []
        for number, type_ in enumerate(graph.inputs):
            inputs.append(_proxy(f"t{number}", type_, proxies))
            proxies[number] = numbers.get(number, inputs[-1])
        bound_symbols = tuple(_bind_op(op, first, proxies, gpu) for op, first in graph.results())
    return BoundGraph(tuple(inputs), bound_symbols, tuple(proxies[number] for number in graph.outputs))


@contextmanager
def _symbolic_sizes() -> Iterator[None]:
    """Keeps Thunder's tensor proxies from replacing symbolic sizes by their values, as they do elsewhere."""
    from fusioncache.thunder_adapter.api import CACHE_OPTIONS, CompileData, CompileStats, compile_data_and_stats

    symbolic = CACHE_OPTIONS.SYMBOLIC_VALUES
    options = CompileData(fn=bind, executors_list=(), cache_option=symbolic, disable_preprocessing=True)
    with compile_data_and_stats(options, CompileStats()):
        yield


def find_fixed_gpu(graph: Graph) -> int | None:
    """Returns the GPU that a graph names by its number, and so runs nowhere else; None if it names none."""
    return next((gpu for literal in _literals(graph) for gpu in fixed_gpus(literal)), None)


def on_each_gpu(
    graph: Graph, args: Sequence[Any], make: Callable[[int], Callable[..., Any]]
) -> Callable[[Sequence[Any]], Any]:
    """Makes a function of the arguments as one sequence, anew for each GPU if the graph makes tensors on it.

    Args:
        graph: what to compute.
        args: the first ones.
        make: takes the number of a GPU, and makes a function of single arguments.
    """
    if not any(map(is_here, _literals(graph))):
        function = make(find_gpu(args))
        return lambda args: function(*args)
    functions: dict[int, Callable[..., Any]] = {}

    def run(args: Sequence[Any]) -> Any:
        gpu = find_gpu(args)
        function = functions.get(gpu) or functions.setdefault(gpu, make(gpu))
        return function(*args)

    return run


def find_gpu(args: Sequence[Any]) -> int:
    """The number of the GPU that arguments lie on; 0 if they lie on none."""
    return next((arg.get_device() for arg in args if getattr(arg, "is_cuda", False)), 0)


def _literals(graph: Graph) -> Iterator[Any]:
    return (arg for op in graph.ops for arg in (*op.args, *(value for _, value in op.kwargs)))


def _bind_op(op: Op, first: int, proxies: dict[int, Any], gpu: int) -> Any:
    results = []
    for position, type_ in enumerate(op.outputs):
        result = None if type_ is None else _proxy(f"t{first + position}", type_, proxies)
        proxies[first + position] = result
        results.append(result)
    args = [decode(arg, proxies.__getitem__, gpu) for arg in op.args]
    kwargs = {name: decode(arg, proxies.__getitem__, gpu) for name, arg in op.kwargs}
    return symbol_named(op.name).bind(*args, output=results[0] if len(results) == 1 else tuple(results), **kwargs)


def _proxy(name: str, type_: ValueType, proxies: dict[int, Any]) -> Any:
    from fusioncache.thunder_adapter.api import CONSTRAINT, ComplexProxy, Device, FloatProxy, IntegerProxy, TensorProxy

    if isinstance(type_, TensorType):
        shape = tuple(proxies[size.index] if isinstance(size, Ref) else size for size in type_.shape)
        device = Device("cuda:0" if type_.device == "cuda" else type_.device)
        return TensorProxy(name, shape=shape, device=device, dtype=thunder_dtype(type_.dtype))
    number = {"int": IntegerProxy, "bool": IntegerProxy, "float": FloatProxy, "complex": ComplexProxy}
    # Thunder tells bool from int by the value, and takes a size of 1 for a broadcast dimension.
    value = {"int": _AnySize(_NO_SIZE + int(name[1:]) * _NO_DIFFERENCE), "bool": False, "float": 2.0, "complex": 2j}[
        type_.python_type
    ]
    return number[type_.python_type](name, value, constraint=CONSTRAINT.DYNAMIC)


def torch_function(
    bound_symbols: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], *, refuses: bool = False
) -> Callable[..., Any]:
    """Makes a function that runs the bound symbols one by one, through Thunder's executors for torch and Python.

    Args:
        bound_symbols: in dependency order.
        inputs: the proxies that become the function's parameters.
        outputs: the proxies that it returns, as a list.
        refuses: whether it is to refuse what these executors refuse, and not to have it computed in another way.
    """
    return _torch_trace(bound_symbols, inputs, outputs, refuses=refuses).python_callable(include_decorators=False)


def torch_source(graph: Graph, gpu: int = 0) -> Source:
    """Returns the source of a function that runs a graph without variables one operation after the other."""
    bound = bind(graph, gpu)
    trace = _torch_trace(bound.bound_symbols, bound.inputs, bound.outputs)
    return Source(trace.python(include_decorators=False), trace.python_ctx())


def general_torch_source(general: GeneralRegion, gpu: int = 0) -> Source:
    """Returns the source of a function that runs a general region, and takes its variables' numbers behind its tensors.

    Raises:
        Declined: if Thunder runs regions of other sizes by other operations.
    """
    sources = [torch_source(region, gpu) for region in general.regions]
    return merge_sources(sources, [read_numbers(values) for values in general.values])


def read_numbers(values: Sequence[Value]) -> list[int | float]:
    """Returns the values of variables as Python's numbers."""
    return [decode(value, int) if isinstance(value, Const) else value for value in values]


def _torch_trace(
    bound_symbols: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], *, refuses: bool = False
) -> Any:
    """Returns a trace, named as sources are, that Thunder's executors for torch and Python have claimed."""
    from fusioncache.backends.refused_operations import executor as other_executor
    from fusioncache.thunder_adapter.api import (
        SigInfo,
        TraceCtx,
        prims,
        python_executor,
        torch_executor,
        tracectx,
        transform_for_execution,
    )

    trace = TraceCtx(None)
    trace.args, trace.kwargs = list(inputs), {}
    trace.names = {proxy.name for proxy in inputs}
    with tracectx(trace):
        for proxy in inputs:
            prims.unpack_trivial(proxy, name=proxy.name)
    for bound_symbol in bound_symbols:
        _reserve_names(bound_symbol, trace.names)
    trace.bound_symbols += [*bound_symbols, prims.python_return.bind(list(outputs), output=None)]
    trace._siginfo = SigInfo(FUNCTION)
    trace._siginfo.args = [(proxy.name, None) for proxy in inputs]
    executors = (torch_executor, python_executor)
    return transform_for_execution(trace, executors_list=executors if refuses else (other_executor, *executors))


def _reserve_names(bound_symbol: Any, names: set[str]) -> None:
    names.update(proxy.name for proxy in bound_symbol.flat_proxy_outs)
    for inner in bound_symbol.subsymbols:
        _reserve_names(inner, names)
