"""Conversion of graphs to Thunder's bound symbols, and of bound symbols to Python functions.

Constants of a graph are encoded from and decoded to Thunder's literals. Operations are converted to and from names.

``merge_sources`` replaces several Python functions by one that takes variables. Thunder writes these functions for
regions of one skeleton, each for its own sizes. A number that differs between the texts must have the value of one
variable in every function; everything else must be equal. So no number that Thunder computes from a size is mistaken
for a constant: such a number differs, and is either a variable's value or refused.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, lru_cache
from types import MappingProxyType
from typing import Any

from fusioncache.ir import (
    Arg,
    Const,
    Declined,
    GeneralRegion,
    Graph,
    NumberType,
    Op,
    Ref,
    Scope,
    TensorType,
    Value,
    ValueType,
)
from fusioncache.ir.graph import literals_of, pick
from fusioncache.ir.ops import op_traits

Number = int | float

FUNCTION = "region"
"""The name of the functions in their sources, and in the merged source."""


@dataclass(frozen=True, slots=True)
class FunctionSource:
    """The text of a function, and the values of its global names."""

    text: str
    names: Mapping[str, Any]


def merge_sources(
    sources: Sequence[FunctionSource], values: Sequence[Sequence[Number]], first: Sequence[int] = ()
) -> FunctionSource:
    """Returns the source of a function that takes the variables' values as well, behind its other arguments.

    Args:
        sources: of functions of the same name.
        values: for each source, the value of each variable. No two variables have equal values in all sources.
        first: which variables come before the others.

    Raises:
        Declined: if the sources differ in anything else.
    """
    names = sources[0].names
    if any(not _have_equal_names(names, other.names) for other in sources[1:]):
        raise Declined("Thunder makes other operations at other sizes", Scope.GENERAL)
    trees = [ast.parse(source.text) for source in sources]
    merger = _Merger(values)
    merged = merger.merge(trees)
    (function,) = [node for node in merged.body if isinstance(node, ast.FunctionDef)]
    order = [*first, *(variable for variable in range(len(merger.variables)) if variable not in first)]
    function.args.args += [ast.arg(name) for name in pick(merger.variables, order)]
    return FunctionSource(ast.unparse(ast.fix_missing_locations(merged)), names)


def define_source(source: FunctionSource) -> Any:
    """Returns the function of a source. It is built like Thunder's, because torch.compile needs to locate its code."""
    from fusioncache.thunder_adapter.api import build_callable

    return build_callable(FUNCTION, python_str=source.text, file_name=f"thunder.{FUNCTION}", ctx=dict(source.names))


def _have_equal_names(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return one.keys() == other.keys() and all(
        value is other[name] or (type(value) is type(other[name]) and value == other[name])
        for name, value in one.items()
    )


class _Merger:
    """Merges the syntax trees of texts, node by node."""

    def __init__(self, values: Sequence[Sequence[Number]]):
        columns = list(zip(*values, strict=True))
        self.variables = [f"variable{number}" for number in range(len(columns))]
        self._variable = {_typed(column): name for column, name in zip(columns, self.variables, strict=True)}

    def merge(self, nodes: Sequence[Any]) -> Any:
        first = nodes[0]
        if isinstance(first, ast.expr) and all(_number(node) is not None for node in nodes):
            return self._merge_numbers(nodes)
        if any(type(node) is not type(first) for node in nodes):
            raise Declined("Thunder makes another definition at other sizes", Scope.GENERAL)
        if isinstance(first, ast.AST):
            fields = {name: self.merge([getattr(node, name, None) for node in nodes]) for name in first._fields}
            return type(first)(**fields)
        if isinstance(first, list):
            if len({len(node) for node in nodes}) != 1:
                raise Declined("Thunder makes a longer definition at some sizes", Scope.GENERAL)
            return [self.merge(items) for items in zip(*nodes, strict=True)]
        if any(node != first for node in nodes):
            raise Declined("Thunder makes another definition at other sizes", Scope.GENERAL)
        return first

    def _merge_numbers(self, nodes: Sequence[ast.expr]) -> ast.expr:
        column = _typed([_number(node) for node in nodes])
        if len(set(column)) == 1:
            return nodes[0]
        name = self._variable.get(column)
        if name is None:
            raise Declined("Thunder computes with a size", Scope.GENERAL)
        return ast.Name(name, ast.Load())


def _typed(column: Sequence[Any]) -> tuple[tuple[type, Any], ...]:
    return tuple((type(value), value) for value in column)


def _number(node: Any) -> Number | None:
    """Returns the number that an expression is, if it is one."""
    match node:
        case ast.Constant(int() | float() as value) if not isinstance(value, bool):
            return value
        case ast.UnaryOp(ast.USub(), ast.Constant(int() | float() as value)) if not isinstance(value, bool):
            return -value
    return None


INPUT_GPU = Const("device", "cuda")
"""The GPU of the inputs, without its number: the same region on another GPU has the same template."""
_NUMBERED = f"{INPUT_GPU.text}:"
"""The start of a device that names a GPU by its number."""

_PYTHON_TYPES = {"bool": bool, "int": int, "float": float, "complex": complex}
_VALUE_OF: Mapping[type, Callable[[Any], Any]] = {
    int: int.__int__,
    float: float.__float__,
    complex: complex.__complex__,
    str: str.__str__,
}


def to_plain(value: Any) -> Any:
    """Returns a number or string of a derived class as an instance of Python's class; any other value unchanged.

    It is the value that torch reads. No method of the derived class is called.
    """
    kind: type = type(value)
    value_of = _find_value_of(kind)
    return value if value_of is None else value_of(value)


@lru_cache(maxsize=256)
def _find_value_of(kind: type) -> Callable[[Any], Any] | None:
    """Returns the function that converts values of a derived class to Python's class; None for other classes."""
    if kind in _VALUE_OF or kind is bool:
        return None
    return next((value_of for base, value_of in _VALUE_OF.items() if issubclass(kind, base)), None)


def encode_literal(value: Any) -> Const:
    """Encodes a literal of a bound symbol as a constant.

    Raises:
        Declined: if the literal is of a type that is not understood.
    """
    if value is None:
        return Const("none", "None")
    if type(value) in (bool, int, str):
        return Const(type(value).__name__, str(value))
    if type(value) is float:
        return Const("float", value.hex())
    # Imported only where needed: an import takes longer than all of the above.
    import torch

    from fusioncache.thunder_adapter.api import Device, dtypes

    if type(value) is complex:
        return Const("complex", f"{value.real.hex()} {value.imag.hex()}")
    if isinstance(value, dtypes.dtype):
        return Const("dtype", value.full_name)
    if isinstance(value, torch.dtype):
        return Const("torch.dtype", str(value).removeprefix("torch."))
    if isinstance(value, Device):
        return Const("device", value.device_str())
    if isinstance(value, type) and value.__name__ in _PYTHON_TYPES:
        return Const("type", value.__name__)
    raise Declined(f"literal of type {type(value).__name__}", Scope.REGION)


def decode_literal(arg: Arg, value_of: Callable[[int], Any], gpu: int = 0) -> Any:
    """Decodes a constant to Thunder's literal, a value to ``value_of(index)``, a tuple to a tuple of these.

    Args:
        arg: of an op.
        value_of: returns the value with this index.
        gpu: the number of the GPU of the inputs.
    """
    import torch

    from fusioncache.thunder_adapter.api import Device

    if isinstance(arg, tuple):
        return tuple(decode_literal(item, value_of, gpu) for item in arg)
    if not isinstance(arg, Const):
        return value_of(arg.index)
    match arg.kind:
        case "none":
            return None
        case "bool":
            return arg.text == "True"
        case "int":
            return int(arg.text)
        case "float":
            return float.fromhex(arg.text)
        case "complex":
            return complex(*map(float.fromhex, arg.text.split()))
        case "str":
            return arg.text
        case "dtype":
            return thunder_dtype(arg.text)
        case "torch.dtype":
            return getattr(torch, arg.text)
        case "device":
            return Device(arg.text if arg != INPUT_GPU else f"{arg.text}:{gpu}")
        case "type":
            return _PYTHON_TYPES[arg.text]
    raise ValueError(f"unknown kind of constant: {arg.kind}")


@cache
def torch_dtype(full_name: str) -> Any:
    """Returns torch's dtype for Thunder's with this full name."""
    from fusioncache.thunder_adapter.api import to_torch_dtype

    return to_torch_dtype(thunder_dtype(full_name))


@cache
def thunder_dtype(full_name: str) -> Any:
    """Returns Thunder's dtype with this full name, such as ``float32`` or, weak, ``float32_``."""
    from fusioncache.thunder_adapter.api import dtypes

    return next(dtype for dtype in dtypes.all_dtypes if dtype.full_name == full_name)


_NVFUSER_EXECUTOR = "thunder.executors.nvfuserex_impl"


def symbol_name(symbol: Any) -> str | None:
    """Returns the name by which ``symbol_named`` finds this same Thunder symbol, or None."""
    if symbol.id is None:
        return None
    by_id, by_name = _tables(_NVFUSER_EXECUTOR in sys.modules)
    name = by_id.get(symbol.id)
    return name if name is not None and by_name[name].meta is symbol.meta else None


def symbol_named(name: str) -> Any:
    """Returns the Thunder symbol with this name, such as ``prims.add``.

    Raises:
        KeyError: if this Thunder has no such operation.
    """
    return _tables(_NVFUSER_EXECUTOR in sys.modules)[1][name]


@cache
def _tables(with_nvfuser: bool) -> tuple[dict[Any, str], dict[str, Any]]:
    symbols = sorted(_all_symbols(with_nvfuser), key=lambda pair: pair[0], reverse=True)
    # A symbol with several aliases gets the first one in alphabetical order.
    return {symbol.id: name for name, symbol in symbols if symbol.id is not None}, dict(symbols)


def _all_symbols(with_nvfuser: bool) -> Iterator[tuple[str, Any]]:
    from fusioncache.thunder_adapter.api import Symbol, ltorch, prims

    for prefix, namespace in (("prims", vars(prims)), ("torch", vars(ltorch))):
        yield from ((f"{prefix}.{name}", value) for name, value in namespace.items() if isinstance(value, Symbol))
    if with_nvfuser:
        yield from ((f"nvfuser.{name}", symbol) for name, symbol in sys.modules[_NVFUSER_EXECUTOR].ex.opmap.items())


def argument_names(bound_symbol: Any) -> list[str]:
    """Returns the names of the values that a bound symbol takes."""
    return [proxy.name for proxy in bound_symbol.flat_proxy_args]


def result_names(bound_symbol: Any) -> list[str]:
    """Returns the names of the values that a bound symbol returns."""
    output = bound_symbol.output
    results = output if isinstance(output, (tuple, list)) else (output,)
    return [result.name for result in results if hasattr(result, "name")]


def outputs_of(fusion: Any) -> list[Any]:
    """Returns the proxies that a fused call defines, without inputs that Thunder also lists among its outputs."""
    inputs = set(argument_names(fusion))
    return [proxy for proxy in fusion.flat_proxy_outs if proxy.name not in inputs]


def flatten(bound_symbol: Any) -> list[Any]:
    """Returns the operations of a bound symbol at the level that regions contain: nearly all are primitives."""
    symbol = bound_symbol.sym
    if symbol.is_prim or not bound_symbol.subsymbols or op_traits(symbol_name(symbol) or "").fusible:
        return [bound_symbol]
    return [primitive for inner in bound_symbol.subsymbols for primitive in flatten(inner)]


def nested_symbols(symbol: Any) -> Iterator[Any]:
    """Yields a bound symbol, and the subsymbols of which it consists at all levels."""
    yield symbol
    for inner in symbol.subsymbols:
        yield from nested_symbols(inner)


def leaves_of(symbol: Any) -> Iterator[Any]:
    """Yields the bound symbols without subsymbols that a bound symbol consists of; itself if it has none."""
    return (each for each in nested_symbols(symbol) if not each.subsymbols)


def may_write(bound_symbol: Any) -> bool:
    """Returns whether a bound symbol, or one of its nested subsymbols, may write into its arguments."""
    return any(map(_writes, nested_symbols(bound_symbol)))


def written_values(bound_symbol: Any) -> Iterator[str]:
    """Yields the names of the values that a bound symbol, or one of its nested subsymbols, may write into."""
    for writing in filter(_writes, nested_symbols(bound_symbol)):
        yield from argument_names(writing)


def _writes(bound_symbol: Any) -> bool:
    """Returns whether a bound symbol itself, without its subsymbols, may write into its arguments."""
    from fusioncache.thunder_adapter.api import OpTags

    symbol = bound_symbol.sym
    # An executor's implementation of an operation has the same id and another name.
    name = _tables(_NVFUSER_EXECUTOR in sys.modules)[0].get(symbol.id, symbol.name)
    return OpTags.IN_PLACE in (symbol.tags or ()) or op_traits(name).writes


_FAKE_SIZE, _FAKE_STEP = 1_000_003, 10_007
"""The value of the first symbolic size for Thunder, and the distance from each one to the next. Neither these values
nor their differences are tensor sizes, so that one that is mistaken for a constant size is noticed."""


class _AnySize(int):
    """The value of a symbolic size. It equals every other one, because Thunder requires equal sizes where it compares.

    The result of arithmetic on two is a plain integer.
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

    inputs: Sequence[Any]
    bound_symbols: Sequence[Any]
    outputs: Sequence[Any]


def bind(graph: Graph, gpu: int = 0, numbers: Mapping[int, Any] = MappingProxyType({})) -> BoundGraph:
    """Returns a graph as bound symbols, with new proxies that are named by the numbers of their values.

    Args:
        graph: without parameters.
        gpu: the number of the GPU of the inputs.
        numbers: the values of inputs that replace their proxies.

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
    """Keeps Thunder's tensor proxies from replacing symbolic sizes by their values, which they do by default."""
    from fusioncache.thunder_adapter.api import CACHE_OPTIONS, CompileData, CompileStats, compile_data_and_stats

    symbolic = CACHE_OPTIONS.SYMBOLIC_VALUES
    options = CompileData(fn=bind, executors_list=(), cache_option=symbolic, disable_preprocessing=True)
    with compile_data_and_stats(options, CompileStats()):
        yield


def find_fixed_gpu(graph: Graph) -> int | None:
    """Returns the GPU that a graph names by its number, and so can only run on; None if it names none."""
    devices = (const.text for const in literals_of(graph) if const.kind == INPUT_GPU.kind)
    gpus = (text.removeprefix(_NUMBERED) for text in devices if text.startswith(_NUMBERED))
    return next(map(int, gpus), None)


def on_each_gpu(graph: Graph, make: Callable[[int], Callable[..., Any]]) -> Callable[[Sequence[Any]], Any]:
    """Returns a function that takes the arguments as one sequence, and calls ``make`` in its first call.

    If the graph creates tensors on the GPU of its inputs, ``make`` is called once for each GPU.

    Args:
        graph: the graph to compute.
        make: takes the number of a GPU, and returns a function of single arguments.
    """
    makes_tensors = INPUT_GPU in literals_of(graph)
    functions: dict[int, Callable[..., Any]] = {}

    def run(args: Sequence[Any]) -> Any:
        gpu = find_gpu(args) if makes_tensors or not functions else next(iter(functions))
        function = functions.get(gpu) or functions.setdefault(gpu, make(gpu))
        return function(*args)

    return run


def find_gpu(args: Sequence[Any]) -> int:
    """Returns the number of the GPU of the arguments; 0 if none is on a GPU."""
    return next((arg.get_device() for arg in args if getattr(arg, "is_cuda", False)), 0)


def _bind_op(op: Op, first: int, proxies: dict[int, Any], gpu: int) -> Any:
    results = []
    for position, type_ in enumerate(op.outputs):
        result = None if type_ is None else _proxy(f"t{first + position}", type_, proxies)
        proxies[first + position] = result
        results.append(result)
    args = [decode_literal(arg, proxies.__getitem__, gpu) for arg in op.args]
    kwargs = {name: decode_literal(arg, proxies.__getitem__, gpu) for name, arg in op.kwargs}
    return symbol_named(op.name).bind(*args, output=results[0] if len(results) == 1 else tuple(results), **kwargs)


def _proxy(name: str, type_: ValueType, proxies: dict[int, Any]) -> Any:
    from fusioncache.thunder_adapter.api import CONSTRAINT, ComplexProxy, Device, FloatProxy, IntegerProxy, TensorProxy

    if isinstance(type_, TensorType):
        shape = tuple(proxies[size.index] if isinstance(size, Ref) else size for size in type_.shape)
        device = Device("cuda:0" if type_.device == "cuda" else type_.device)
        return TensorProxy(name, shape=shape, device=device, dtype=thunder_dtype(type_.dtype))
    number = {"int": IntegerProxy, "bool": IntegerProxy, "float": FloatProxy, "complex": ComplexProxy}
    # Thunder distinguishes bool from int by the value, and treats a size of 1 as a broadcast dimension.
    value = {"int": _AnySize(_FAKE_SIZE + int(name[1:]) * _FAKE_STEP), "bool": False, "float": 2.0, "complex": 2j}[
        type_.python_type
    ]
    return number[type_.python_type](name, value, constraint=CONSTRAINT.DYNAMIC)


def torch_function(bound: BoundGraph, *, refuses: bool = False) -> Callable[..., Any]:
    """Returns a function that runs a graph's operations one by one, through Thunder's executors for torch and Python.

    Args:
        bound: the graph. The function takes its inputs, and returns its outputs as a list.
        refuses: whether to fail for operations that these executors refuse, instead of computing them otherwise.
    """
    return _torch_trace(bound, refuses=refuses).python_callable(include_decorators=False)


def torch_source(graph: Graph, gpu: int = 0) -> FunctionSource:
    """Returns the source of a function that runs the operations of a graph without variables one by one."""
    trace = _torch_trace(bind(graph, gpu))
    return FunctionSource(trace.python(include_decorators=False), trace.python_ctx())


def general_torch_source(general: GeneralRegion, gpu: int = 0, first: Sequence[int] = ()) -> FunctionSource:
    """Returns the source of a function that runs a general region. It takes its variables' values behind its tensors.

    Args:
        general: the region.
        gpu: the number of the GPU of the inputs.
        first: which variables come before the others.

    Raises:
        Declined: if Thunder runs regions of other sizes by other operations.
    """
    sources = [torch_source(region, gpu) for region in general.regions]
    return merge_sources(sources, [read_numbers(values) for values in general.values], first)


def read_numbers(values: Sequence[Value]) -> list[int | float]:
    """Returns the values of variables as Python numbers."""
    return [decode_literal(value, int) if isinstance(value, Const) else value for value in values]


def _torch_trace(bound: BoundGraph, *, refuses: bool = False) -> Any:
    """Returns a trace with the function name ``FUNCTION``, claimed by Thunder's executors for torch and Python."""
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
    trace.args, trace.kwargs = list(bound.inputs), {}
    trace.names = {proxy.name for proxy in bound.inputs}
    with tracectx(trace):
        for proxy in bound.inputs:
            prims.unpack_trivial(proxy, name=proxy.name)
    defining = (inner for bound_symbol in bound.bound_symbols for inner in nested_symbols(bound_symbol))
    trace.names.update(proxy.name for inner in defining for proxy in inner.flat_proxy_outs)
    trace.bound_symbols += [*bound.bound_symbols, prims.python_return.bind(list(bound.outputs), output=None)]
    trace._siginfo = SigInfo(FUNCTION)
    trace._siginfo.args = [(proxy.name, None) for proxy in bound.inputs]
    executors = (torch_executor, python_executor)
    return transform_for_execution(trace, executors_list=executors if refuses else (other_executor, *executors))
