"""TorchInductor's code as ``torch.compile`` makes it, bit for bit, and as bytes.

Kernels read memory directly, in a fixed layout. Arguments of other kinds are refused, or another function is compiled
for them. A region for arguments of one layout is a general region without variables.

Each variable is a symbolic integer from the start, and code takes the variables behind its tensors. The guards that
TorchInductor recorded on them while it compiled, and the layouts of arguments, are conditions that are checked before
each use. Code for any sizes is not made if it cannot be stored.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

from fusioncache.backends.api import Compiled, Progress, Run, compile_when_called, device_types_of
from fusioncache.backends.bound_symbols import define_source
from fusioncache.backends.inductor.artifacts import (
    Fakes,
    Package,
    TensorKind,
    check_arguments,
    check_condition,
    check_wrapper,
    define,
    evaluate,
    fake,
    find_kernel,
    load_kernels,
    load_module,
    lower,
    pack,
    read_signature,
    unpack,
)
from fusioncache.backends.inductor.carried_region import TensorRegion, without_numbers
from fusioncache.backends.inductor.joined_kernels import (
    CollectedKernel,
    Kernel,
    collect_kernels,
    compile_joined,
    estimate_alone,
)
from fusioncache.ir import Declined, Graph, Ref, Scope, TensorType, Value, is_declined
from fusioncache.ir.ops import writes_in_place
from fusioncache.ir.template import ArgumentLayouts
from fusioncache.process.warning import log_errors

_ELSEWHERE = "a tensor that is not on the CPU"
_LONG = 300
"""TorchInductor shares an inner loop among threads if it has this many times the steps of the loops around it."""


@dataclass(frozen=True, slots=True)
class Code:
    """Compiled code of a region.

    Attributes:
        run: takes the arguments, which are plain tensors, and behind them the values of the variables.
        conditions: on sizes and strides, if there are variables.
    """

    run: Run
    conditions: tuple[str, ...]


def persist(
    carried: TensorRegion,
    args: Sequence[Any],
    values: Sequence[Value],
    mode: str | None,
    package: Package | None = None,
) -> Compiled[Code | None]:
    """Compiles a region, and returns the code with its artifacts, or nothing and the reason.

    Args:
        carried: the region.
        args: its arguments; those of one instance, if there are variables.
        values: of the variables.
        mode: as for ``torch.compile``.
        package: the code, if it was compiled together with that of other regions.

    Raises:
        Declined: if it cannot be compiled for any sizes.
    """
    try:
        refuse_unpersistable(carried)
        inputs = read_plain(args)
        # For a single region, TorchInductor uses precompiled headers.
        package = package or _lower(carried, inputs, values, mode)
        if package.outputs != len(carried.general.graph.outputs):
            raise Declined("outputs of TorchInductor's own", Scope.STORING)
        _check_conditions(package.conditions, carried)
        kernels = package.read_kernels()
        run = define(package.code, {name: kernel.function for name, kernel in kernels.items()})
        run([*args, *values])  # fails here if it cannot run
        code = Code(run, package.conditions)
        return Compiled(code, pack(package, kernels, inputs), None, alone_seconds=package.alone_seconds)
    except Exception as error:  # a region that fails here may work with torch.compile
        if is_declined(error, Scope.GENERAL):
            raise
        lasting = is_declined(error, Scope.STORING)
        is_refused = lasting or is_declined(error, Scope.STORING_NOW)
        reason = str(error) if is_refused else f"{type(error).__name__} where its code is to be stored"
    return Compiled(None, None, reason, lasting)


def load(artifacts: Mapping[str, bytes], carried: TensorRegion, args: Sequence[Any]) -> Code:
    """Returns the code of artifacts. Compiles nothing and runs nothing.

    Raises:
        ValueError: if they have another format, or are not for this region or, if it has no variables, not for
            arguments of this layout.
        Declined: if the code is not in the language of stored code.
        OSError: if there is no room for temporary files.
    """
    signature = read_signature(artifacts)
    check_arguments(signature, carried.general.graph, args, any_size=bool(carried.general.places))
    wrapper, libraries = unpack(artifacts, signature)
    _check_conditions(signature.conditions, carried)
    try:
        names = {name for name, _, _ in signature.kernels}
        run = define(check_wrapper(wrapper.decode(), names), load_kernels(signature, libraries))
    except ImportError as error:
        raise ValueError(f"a kernel that does not load: {error}") from error
    return Code(run, signature.conditions)


def fit(code: Code, compile_: Callable[[Sequence[Any]], Run], args: Sequence[Any], values: Sequence[Value]) -> Run:
    """Returns the function for arguments of these sizes: see ``GeneralFunction``.

    Args:
        code: for any sizes.
        compile_: returns the function that replaces ``code.run`` for arguments that it cannot read, such as the given
            ones.
        args: the first arguments.
        values: of the variables.

    Raises:
        Declined: if the code's conditions exclude them.
    """
    names = {_name(number): value for number, value in enumerate(values)}
    names |= _name_layouts([(arg.shape, arg.stride()) for arg in args])
    if not all(evaluate(text, names) for text in code.conditions):
        raise Declined("TorchInductor's code for any sizes excludes these sizes", Scope.GENERAL)

    def add_values(run: Run) -> Run:
        return lambda args: run([*args, *values])

    return guard_plain(add_values(code.run), lambda args: add_values(compile_(args)))


def package_together(
    graphs: Sequence[tuple[Graph, Sequence[Any]]], mode: str | None, progress: Progress
) -> dict[int, Package]:
    """Compiles several graphs, each for its own arguments, with one run of the C++ compiler.

    Returns:
        The code of those that can be persisted, by their position.
    """
    lowered: dict[int, Package] = {}
    with collect_kernels():
        for number, (graph, args) in enumerate(graphs):
            progress(len(graphs) - number)
            # An error is raised again when the graph is compiled alone.
            with log_errors("a region is not compiled together with others"):
                refuse_unpersistable(carried := without_numbers(graph))
                lowered[number] = _lower(carried, read_plain(args), (), mode)
        progress(0)
        return dict(zip(lowered, compile_kernels(list(lowered.values())), strict=True))


def compile_kernels(lowered: Sequence[Package]) -> list[Package]:
    """Compiles the collected kernels of several graphs. If that fails, TorchInductor compiles each one later.

    Returns:
        The same packages, each with an estimate of its seconds alone.
    """
    begun = time.perf_counter()
    kernels = [kernel for one in lowered for kernel in _find_collected(one) if kernel.compiled is None]
    with log_errors("kernels are not compiled together"):
        if kernels:
            library, names = compile_joined(kernels)
            module = load_module(library)
            compiled = [Kernel(find_kernel(module, name), library, name) for name in names]
            for kernel, one in zip(kernels, compiled, strict=True):
                kernel.compiled = one
    sources = [[kernel.source for kernel in _find_collected(one)] for one in lowered]
    seconds = estimate_alone(time.perf_counter() - begun, sources)
    return [replace(one, alone_seconds=one.alone_seconds + own) for one, own in zip(lowered, seconds, strict=True)]


def _find_collected(lowered: Package) -> list[CollectedKernel]:
    """Returns the kernels of a graph that were collected instead of compiled."""
    return [function for function in lowered.functions.values() if isinstance(function, CollectedKernel)]


def _lower(carried: TensorRegion, inputs: Sequence[TensorKind], values: Sequence[Value], mode: str | None) -> Package:
    """Returns TorchInductor's code of a region that can be persisted. Its ``alone_seconds`` are those of this call."""
    begun = time.perf_counter()
    function = define_source(carried.source(gpu=0))
    if not carried.general.places:
        lowered = lower(function, fake(inputs), mode)
    else:
        symbols, layouts = make_symbols(values), list(_describe_layouts(carried, inputs))
        with guard_decisions():
            lowered = lower(_with_symbols(function), _fake(layouts, inputs, symbols), mode)
        of_layouts = [f"{name} == {text}" for name, text in _name_layouts(layouts).items()]
        lowered = replace(lowered, conditions=(*of_layouts, *symbols.guards()))
    return replace(lowered, alone_seconds=time.perf_counter() - begun)


def refuse_unpersistable(carried: TensorRegion) -> None:
    """Raises an error before compilation if a region is known not to be persistable.

    Raises:
        Declined: names the obstacle.
    """
    for region in carried.general.regions:
        if (obstacle := find_obstacle(replace(region, inputs=carried.types))) is not None:
            raise Declined(obstacle, Scope.STORING)
    if (problem := find_mode()) is not None:
        raise Declined(problem, Scope.STORING_NOW)


def find_obstacle(graph: Graph) -> str | None:
    """Returns why a graph cannot be persisted with any arguments; None if it might be."""
    if not all(isinstance(type_, TensorType) for type_ in graph.inputs):
        return "a number among the inputs"
    # A region without inputs creates its tensors, so the devices of results count as well.
    if device_types_of(graph) - {"cpu"}:
        return _ELSEWHERE
    # ``lower`` checks the compiled code for in-place effects again.
    return "in-place effects" if writes_in_place(graph) else None


def find_mode() -> str | None:
    """Returns the name of an active torch mode, which may replace operations in a trace, or None."""
    from torch.overrides import _get_current_function_mode_stack
    from torch.utils._device import DeviceContext
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    modes = [*_get_current_function_mode_stack(), *_get_current_dispatch_mode_stack()]
    return next((f"the mode {type(mode).__name__}" for mode in modes if not isinstance(mode, DeviceContext)), None)


def read_plain(args: Sequence[Any]) -> tuple[TensorKind, ...]:
    """Returns the kinds of arguments that are plain tensors on the CPU.

    Raises:
        Declined: if one is not.
    """
    import torch

    kinds: list[TensorKind] = []
    for arg in args:
        if arg.device.type != "cpu":
            raise Declined(_ELSEWHERE, Scope.STORING)
        if type(arg) not in (torch.Tensor, torch.nn.Parameter):
            raise Declined(f"an argument of type {type(arg).__name__}", Scope.STORING_NOW)
        if arg.layout != torch.strided or arg.is_quantized or arg.is_conj() or arg.is_neg():
            raise Declined("a tensor that is sparse, quantized or otherwise special", Scope.STORING_NOW)
        kinds.append((str(arg.dtype).removeprefix("torch."), tuple(arg.shape), tuple(arg.stride())))
    return tuple(kinds)


def guard_plain(run: Run, compile_: Callable[[Sequence[Any]], Run]) -> Run:
    """Returns a function that calls another one if arguments of the same layout are not plain tensors.

    Calls of one layout may differ in the types of tensors, and in lazy negation and conjugation. Alignment, autograd
    and memory that arguments share do not matter: kernels load unaligned, are not dispatched, and write only into their
    outputs.

    Args:
        run: for plain tensors.
        compile_: returns the other function, which takes tensors of any kind. It is called at the first use.
    """
    import torch

    are_plain = {torch.Tensor, torch.nn.Parameter}.issuperset
    is_neg, is_conj = torch.Tensor.is_neg, torch.Tensor.is_conj
    for_any = compile_when_called(compile_)

    def for_these(args: Sequence[Any]) -> Sequence[Any]:
        # Types first: subclasses may override the other two methods.
        if not are_plain(map(type, args)) or any(map(is_neg, args)) or any(map(is_conj, args)):
            return for_any(args)
        return run(args)

    return for_these


def layout_of_any_size(layouts: ArgumentLayouts) -> Hashable:
    """Returns the order of the dimensions of each tensor in memory, and whether there are gaps; None for a number.

    All else that code depends on is in its conditions, which are checked before each use.
    """
    return tuple(None if layout is None else _kind_of_layout(*layout) for layout in layouts)


def _kind_of_layout(shape: Sequence[int], strides: Sequence[int]) -> Hashable:
    dimensions = [index for index, size in enumerate(shape) if size != 1]
    order = tuple(sorted(dimensions, key=lambda index: -strides[index]))
    step = 1
    for index in reversed(order):
        if strides[index] != step:
            return order, tuple(strides[index] == 0 for index in dimensions)
        step *= shape[index]
    return order


def _check_conditions(conditions: Sequence[str], carried: TensorRegion) -> None:
    """Checks that conditions are in their language, and that they mention each size and stride.

    Raises:
        Declined: if they are not in the language.
        ValueError: if they omit one.
    """
    shapes = [(type_.shape, type_.shape) for type_ in carried.types if carried.general.places]
    layouts = set(_name_layouts(shapes))
    names = {*layouts, *map(_name, range(len(carried.places)))}
    for text in conditions:
        check_condition(text, names)
    missing = layouts.difference(*(text.split() for text in conditions))
    if missing:
        raise ValueError(f"conditions that say nothing of {min(missing)}")


def _name(variable: int) -> str:
    return f"v{variable}"


def _name_layouts(layouts: Iterable[tuple[Sequence[Any], Sequence[Any]]]) -> dict[str, Any]:
    """Returns the sizes and strides of arguments by their names in conditions."""
    names: dict[str, Any] = {}
    for number, layout in enumerate(layouts):
        for dimension, (size, stride) in enumerate(zip(*layout, strict=True)):
            names |= {f"size_{number}_{dimension}": size, f"stride_{number}_{dimension}": stride}
    return names


Layout = tuple[list[str], list[str]]
"""Sizes and strides of a tensor, as texts in the names of variables."""


def _describe_layouts(carried: TensorRegion, inputs: Sequence[TensorKind]) -> Iterator[Layout]:
    """Yields the layouts of arguments. Strides that follow from sizes are written as products, others as constants."""
    shapes = [type_.shape for type_ in carried.types]
    names = {
        shapes[place[0]][place[1]]: _name(number) for number, place in enumerate(carried.places) if place is not None
    }
    for (_, actual, strides), shape in zip(inputs, shapes, strict=True):
        sizes = [names[size] if isinstance(size, Ref) else str(size) for size in shape]
        yield sizes, _describe_strides(actual, strides, sizes)


def _describe_strides(shape: Sequence[int], strides: Sequence[int], sizes: Sequence[str]) -> list[str]:
    texts = list(map(str, strides))
    follows: dict[int, str] = {}
    for dimension in sorted(range(len(shape)), key=lambda dimension: (strides[dimension], -dimension)):
        stride, size = strides[dimension], shape[dimension]
        texts[dimension] = follows.get(stride, str(stride)) if stride > 1 else str(stride)
        follows.setdefault(stride * size, f"{texts[dimension]}*{sizes[dimension]}")
    return texts


def _with_symbols(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that can be traced with symbolic integers: some C++ operations take only plain ones."""
    from torch._dispatch.python import enable_python_dispatcher

    def call(*args: Any) -> Any:
        with enable_python_dispatcher():
            return function(*args)

    return call


def _fake(layouts: Sequence[Layout], inputs: Sequence[TensorKind], symbols: _Symbols) -> Fakes:
    kinds: list[TensorKind] = []
    for layout, (dtype, _, _) in zip(layouts, inputs, strict=True):
        sizes, strides = (tuple(evaluate(text, symbols.values) for text in texts) for texts in layout)
        kinds.append((dtype, sizes, strides))
    return Fakes(symbols.mode, [*fake(kinds, symbols.mode).args, *symbols.values.values()])


@dataclass(frozen=True, slots=True)
class _Symbols:
    """A symbolic integer for each variable, by its name, and the guards that torch recorded on them."""

    mode: Any
    values: Mapping[str, Any]
    guards: Callable[[], list[str]]


@contextmanager
def guard_decisions() -> Iterator[None]:
    """Makes TorchInductor decide for code for any sizes as it does for one size, or raises ``Declined``.

    TorchInductor decides by the first sizes, without a guard, how many threads share a sum. It shares an inner loop
    among threads only if it knows the sizes. It counts numbers among the operations that decide whether a loop is
    vectorized, but no constants. Each of these decisions affects bits.
    """
    from torch._inductor.codegen import cpp

    with (
        mock.patch.object(cpp.CppKernel, "decide_parallel_depth", _guard_depth(cpp.CppKernel.decide_parallel_depth)),
        mock.patch.object(cpp.TilingSelect, "select_tiling", _guard_loops(cpp.TilingSelect.select_tiling)),
    ):
        try:
            yield
        except Exception as error:  # TorchInductor wraps all errors
            inner = getattr(error, "inner_exception", None)
            if isinstance(inner, Declined):
                raise inner from error
            raise


def _holds(condition: Any) -> bool:
    """Returns whether a condition on sizes is true for the first sizes. It becomes a guard."""
    from torch._inductor.virtualized import V

    return bool(V.graph.sizevars.evaluate_expr(condition))


def _find_least_work(threads: int) -> int:
    """Returns the number of steps from which these threads share loops."""
    from torch._inductor import config

    return int(config.cpp.min_chunk_size) * threads


def _guard_depth(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a ``CppKernel.decide_parallel_depth`` that guards how many loops of a sum threads share."""

    def decide_parallel_depth(self: Any, most: Any, threads: int) -> Any:
        import sympy

        found = original(self, most, threads)
        if threads == 1 or most.start_depth < self.reduction_depth:
            return found
        work, shared, depth = sympy.prod(self.call_ranges), sympy.Integer(1), 0
        for size in self.call_ranges[most.start_depth :][: most.parallel_depth]:
            is_shared = _holds(shared >= 2 * threads) or _holds(sympy.Eq(shared, threads))
            if is_shared or _holds(work < _find_least_work(threads) * shared):
                break
            depth, shared = depth + 1, shared * size
        if depth != found.parallel_depth:
            raise Declined("threads share a sum in an unknown way", Scope.GENERAL)
        return found

    return decide_parallel_depth


def _guard_loops(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a ``TilingSelect.select_tiling`` that also checks each loop: see ``guard_decisions``."""

    def select_tiling(self: Any, functions: Any, sizes: Sequence[Any]) -> Any:
        own, selected = self._select_tiling_indices, []

        def select(*args: Any) -> Any:
            selected.append((args[-1], own(*args)))
            return selected[-1][1]

        with mock.patch.object(self, "_select_tiling_indices", select):
            factors, places = original(self, functions, sizes)
        outer, inner = max(sizes, key=lambda each: len(each[1]))
        _check_inner_loop(outer, inner, factors, places)
        for factor, (*others, place) in selected:
            if not others:  # TorchInductor counts accesses only along a single dimension
                _check_accesses(functions, len(outer), len(inner), factor, place)
        return factors, places

    return select_tiling


def _check_inner_loop(
    outer: Sequence[Any], inner: Sequence[Any], factors: Sequence[int], places: Sequence[int]
) -> None:
    """Excludes sizes at which threads would share the first inner loop if TorchInductor knew the sizes.

    Raises:
        Declined: if these are the first sizes.
    """
    import sympy
    from torch._inductor.codegen.cpp import parallel_num_threads
    from torch.utils._sympy.functions import FloorDiv

    steps = [*outer, *inner]
    threads, work = parallel_num_threads(), sympy.prod(steps)
    if not outer or not inner or threads == 1 or isinstance(work, sympy.Integer):
        return
    for factor, place in zip(factors, places, strict=True):
        steps[place] = FloorDiv(steps[place], factor)
    is_long = _holds(sympy.prod(steps[: len(outer)]) * _LONG < steps[len(outer)])
    if is_long and not _holds(work < _find_least_work(threads)):
        raise Declined("threads would share an inner loop", Scope.GENERAL)


def _check_accesses(functions: Any, outer: int, inner: int, factor: int, place: int) -> None:
    """Checks that variables do not change whether TorchInductor vectorizes a loop with strided accesses.

    TorchInductor counts each variable as an operation, and an index with a variable stride as a strided access.

    Raises:
        Declined: if they might change it.
    """
    from torch._inductor.codegen import cpp
    from torch.utils._sympy.symbol import SymT

    indices = [cpp.sympy_index_symbol_with_prefix(SymT.XBLOCK, number) for number in range(outer + inner)]
    operations = strided = variables = symbolic = 0
    for body in cpp._get_loop_body(functions):
        for block in (body.root_block, *body.subblocks.values()):
            expressions = block.body.indexing_from_args((indices[:outer], indices[outer:]))
            for node in block.graph.nodes:
                target = node.target
                is_counted = isinstance(target, str) and not target.startswith("masked_subblock")
                operations += is_counted and target not in _UNCOUNTED
                if target not in ("index_expr", "load", "store"):
                    continue
                index = expressions[node.args[1 if target == "index_expr" else 2].args[0]]
                stride = cpp.stride_at_vec_range(index, indices[place], factor)
                strided += not stride.is_number if target == "index_expr" else stride not in (0, 1)
                symbolic += target == "index_expr" and not stride.is_number
                variables += target != "store" and index.free_symbols.isdisjoint(indices)
    # Each variable may be converted as well.
    fewest, most = _is_strided(strided - symbolic, operations), _is_strided(strided, operations - 2 * variables)
    if fewest != most:
        raise Declined("a loop that may be vectorized at known sizes only", Scope.GENERAL)


_UNCOUNTED = frozenset({"ops", "output", "constant", "get_index"})
"""Nodes of TorchInductor's loops that do not count as operations."""


def _is_strided(strided: int, operations: int) -> bool:
    """True if TorchInductor does not vectorize a loop with so many strided accesses among its operations."""
    return strided >= 35 or (strided > 0 and strided >= 0.12 * operations)


def make_symbols(values: Sequence[Value]) -> _Symbols:
    """Returns the symbols. Equal initial values do not merge two symbols, and no value makes one a constant."""
    from torch._dynamo.source import LocalSource
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

    environment = ShapeEnv(duck_shape=False)
    sources = [LocalSource(_name(number)) for number in range(len(values))]
    symbols = [
        environment.create_symintnode(
            environment.create_symbol(value, source=source, dynamic_dim=DimDynamic.DYNAMIC), hint=value, source=source
        )
        for value, source in zip(values, sources, strict=True)
    ]

    def guards() -> list[str]:
        found: list[str] = environment.produce_guards(symbols, sources, source_ref=lambda source: source.local_name)
        return found

    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=environment)
    return _Symbols(mode, {source.local_name: symbol for source, symbol in zip(sources, symbols, strict=True)}, guards)
