"""Converts a graph to nvFuser's ``FusionDefinition``, by Thunder's translators, and compiles it.

Writing a definition needs nvFuser, and no GPU.

A repeat is an expanded dimension that a reshape merges with its neighbour. If only operations such as sums, products
and slices follow, nvFuser's pass ``MoveRepeatForward`` (NVIDIA/Fuser#4338, in nvFuser 0.2.36) moves it behind them:
they compute on data that is not repeated yet, and then all of the dimension is repeated, as a b a b. That is right for
an expanded dimension in front of its neighbour. For one behind it, as in ``repeat_interleave``, a a b b is meant. So
heads get the keys of other heads, under plain Thunder as well: docs/upstream.md has a script. The pass does not move a
repeat past a copy, and no kernel materializes a copy.

If two kernels of a region use an ``iota``, nvFuser 0.2.36 overwrites memory of other tensors. So Thunder's operation
``iota`` is removed from its nvFuser executor: it stays outside regions, and torch computes it.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from importlib.machinery import ModuleSpec
from itertools import zip_longest
from types import MappingProxyType, ModuleType
from typing import Any

from fusioncache.backends.api import Run
from fusioncache.backends.nvfuser.translators import pretend_gpu
from fusioncache.backends.torch_settings import is_capturing
from fusioncache.ir import Arg, Const, Graph, Op, Ref, TensorType, ValueType
from fusioncache.ir.graph import argument_refs
from fusioncache.ir.ops import FULL_LIKE
from fusioncache.ir.template import ArgumentLayouts, layouts_of

_COPY, _EXPAND, _RESHAPE = "prims.shallow_copy", "prims.broadcast_in_dim", "prims.reshape"
"""Names of operations. A shallow copy is not passed on to nvFuser."""

Shape = tuple[int | Ref, ...]


def find_repeats(graph: Graph, layouts: Sequence[Any]) -> frozenset[int]:
    """Returns the positions of ops that reshape an expanded tensor, if another op computes with the result.

    In doubt a tensor counts as expanded, because no kernel materializes a copy.

    Args:
        graph: the graph.
        layouts: of its inputs: see ``describe_tensor``; None for a number.
    """
    shapes = {number: _shape_of(type_) for number, type_ in enumerate(graph.inputs)}
    expanded = {
        number: _is_expanded(shapes[number], layout)
        for number, (_, layout) in enumerate(zip_longest(graph.inputs, layouts))
    }
    used, found = _find_used(graph), set()
    for position, (op, result) in enumerate(graph.results()):
        operands = [number for _, number in argument_refs(op) if shapes.get(number)]
        if op.name == _RESHAPE and result in used and any(expanded[operand] for operand in operands):
            found.add(position)
        before = [(shapes[operand], expanded[operand]) for operand in operands]
        for number, type_ in enumerate(op.outputs, result):
            shapes[number] = _shape_of(type_)
            expanded[number] = _follow(op, shapes[number], before)
    return frozenset(found)


def _follow(op: Op, shape: Shape, operands: Sequence[tuple[Shape, bool]]) -> bool:
    """Returns whether an op's result may be expanded, given the shapes of its operands and whether these may be."""
    if op.name == _EXPAND and _without_ones(shape) != _without_ones(operands[0][0] if operands else ()):
        return True
    # If all operands have the result's shape, one that is not expanded is enough: then all elements are computed.
    decide = all if operands and all(operand == shape for operand, _ in operands) else any
    return decide(expanded for _, expanded in operands)


def _is_expanded(shape: Shape, layout: Any) -> bool:
    """Returns whether an argument is expanded. Such a dimension has no contiguity, nor has one of size 1."""
    return layout is not None and any(
        size != 1 and contiguous is None for size, contiguous in zip(shape, layout[0], strict=True)
    )


def _without_ones(shape: Shape) -> list[int | Ref]:
    return [size for size in shape if size != 1]


def _find_used(graph: Graph) -> set[int]:
    """Returns the values that ops compute with. A use of a copy counts as a use of the original."""
    used: set[int] = set()
    for op, result in reversed(list(graph.results())):
        if op.name != _COPY or result in used:
            used.update(number for _, number in argument_refs(op))
    return used


def _shape_of(type_: ValueType | None) -> Shape:
    return type_.shape if isinstance(type_, TensorType) else ()


Switches = tuple[tuple[str, ...], tuple[str, ...]]
"""The nvFuser options that are on, and those that are off."""

VERSION = 3
"""The version of written definitions. It changes when their meaning does, such as where repeats are."""

SEEN_WORKING = "torch 2.10 with nvfuser-cu128-torch210==0.2.36.dev20260301 and lightning-thunder 0.2.6"


@dataclass(frozen=True, slots=True)
class CompiledDefinition:
    """Code that nvFuser compiled: a function, and its ``FusionDefinition``, which was executed.

    The definition is written for the GPU of number ``device``. If that is None, it runs on the GPU of its arguments. It
    takes ``numbers`` behind the arguments of the function.
    """

    run: Run
    definition: Any
    device: int | None
    numbers: tuple[int | float, ...] = ()

    def keep_if_captured(self) -> Run:
        """Returns ``run`` as a function that may be captured in a CUDA graph.

        A graph contains the kernels' handles, and nvFuser unloads kernels with their definition. So a captured
        definition is held until the process ends. Its sizes are fixed, so that nvFuser never compiles a kernel of it
        again.
        """
        run, definition, kept = self.run, self.definition, _captured_definitions()

        def call(args: Sequence[Any]) -> Sequence[Any]:
            if is_capturing():
                kept[id(definition)] = definition
            return run(args)

        return call


@cache
def _captured_definitions() -> dict[int, Any]:
    """Returns the definitions that were captured in CUDA graphs, by their identities."""
    return {}


def compile_definition(
    definition: Any, graph: Graph, args: Sequence[Any], switches: Switches, enable: Sequence[str] = ()
) -> CompiledDefinition:
    """Compiles a definition of a graph. The options ``enable`` are on for compiling, not for runs."""
    from fusioncache.backends.bound_symbols import find_fixed_gpu

    on, off = map(list, switches)
    device = definition._get_device_index(definition._selected_device) if find_fixed_gpu(graph) is not None else None
    # Executing the definition compiles it.
    definition.execute(list(args), device=device, _enable_options=[*on, *enable], _disable_options=off)
    run = partial(definition.fec.execute, device=device, _enable_options=on, _disable_options=off)
    return CompiledDefinition(run, definition, device)


def define(
    graph: Graph, layouts: Sequence[Any], translators: Mapping[str, Callable[..., Any]] = MappingProxyType({})
) -> Any:
    """Returns a graph without parameters as a ``FusionDefinition``, as Thunder's ``create_fd`` would.

    nvFuser is kept from moving repeats: see ``find_repeats``.

    Args:
        graph: the graph.
        layouts: descriptors of its inputs, by ``describe_arguments``. They may be missing for numbers at the end.
        translators: replacements of Thunder's translators, by the name of the operation's id.
    """
    from fusioncache.backends.bound_symbols import bind

    bound, executor, repeats = bind(graph), nvfuser_executor(), find_repeats(graph, layouts)
    definition = executor.FusionDefinition()
    definition._selected_device = None
    values = executor.utils.ProxyDict()
    with definition:
        for proxy, layout in zip_longest(bound.inputs, layouts):
            _add_input(executor, definition, values, proxy, layout)
        for position, symbol in enumerate(map(_as_primitive, bound.bound_symbols)):
            # The id of a primitive is an enum member, that of a torch function a string.
            name = getattr(symbol.sym.id, "name", symbol.sym.id)
            translate = translators.get(name) or executor.get_translator(symbol)
            results = translate(*symbol.args, **symbol.kwargs, fd=definition, lc_to_nv_map=values)
            if position in repeats:
                results = definition.ops.set(results)
            for proxy, result in zip(_listed(symbol.output), _listed(results), strict=False):
                if proxy is not None:
                    values[proxy] = result
        for proxy in bound.outputs:
            definition.add_output(values[proxy])
    return definition


def define_for(graph: Graph, args: Sequence[Any]) -> Any:
    """Returns a graph as a ``FusionDefinition`` for arguments of this layout."""
    return define(graph, describe_arguments(args))


def _as_primitive(symbol: Any) -> Any:
    """Returns a bound symbol that Thunder's translators know in place of this one. Strides do not matter here."""
    from fusioncache.thunder_adapter.api import prims

    if symbol.sym.id != FULL_LIKE:
        return symbol
    made = symbol.output
    return prims.full.bind(made.shape, symbol.args[1], device=made.device, dtype=made.dtype, output=made)


def _add_input(executor: ModuleType, definition: Any, values: Any, proxy: Any, layout: Any) -> None:
    from fusioncache.thunder_adapter.api import NumberProxy

    if isinstance(proxy, NumberProxy):
        values[proxy] = definition.define_scalar(executor.lcdtype_to_nvdtype(proxy.python_type))
        return
    contiguity, stride_order, _ = layout
    shape = [-1 if isinstance(size, NumberProxy) else size for size in proxy._shape]
    tensor = definition.define_tensor(
        shape=shape,
        contiguity=contiguity,
        dtype=executor.lcdtype_to_nvdtype(proxy.dtype),
        stride_order=stride_order,
        is_cpu=proxy.device == executor.cpu,
    )
    values[proxy] = tensor
    for dimension, size in enumerate(proxy._shape):
        if isinstance(size, NumberProxy):
            values[size] = tensor.size(dimension)


def _listed(values: Any) -> Sequence[Any]:
    return values if isinstance(values, (tuple, list)) else (values,)


def describe_arguments(args: Sequence[Any]) -> tuple:
    """Returns the descriptor of each argument for ``define``: see ``describe_tensor``; None for a number."""
    return describe_layouts(layouts_of(args))


def describe_layouts(layouts: ArgumentLayouts) -> tuple:
    """Returns the descriptors of arguments of these layouts."""
    return tuple(None if layout is None else describe_tensor(tuple(layout[0]), layout[1]) for layout in layouts)


def describe_contiguous(graph: Graph) -> tuple:
    """Returns the descriptors of contiguous inputs with static shapes."""
    import torch

    shapes: list[Any] = [type_.shape if isinstance(type_, TensorType) else None for type_ in graph.inputs]
    return describe_arguments([shape if shape is None else torch.empty(shape, device="meta") for shape in shapes])


@lru_cache(maxsize=4096)
def describe_tensor(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple:
    """Returns the descriptor of a tensor: its contiguity, its stride order, and no sharding."""
    from nvfuser_direct import compute_tensor_descriptor

    contiguity, stride_order = compute_tensor_descriptor(shape, strides)
    return tuple(contiguity), tuple(stride_order), ()


def nvfuser_executor() -> ModuleType:
    """Returns Thunder's module of translators to nvFuser, adapted to nvFuser's direct bindings, and without ``iota``.

    Thunder 0.2.6 still takes one function from a module ``nvfuser``, which nvFuser 0.2.36 does not contain.
    """
    import nvfuser_direct

    if "nvfuser" not in sys.modules and importlib.util.find_spec("nvfuser") is None:
        shim = ModuleType("nvfuser", "Forwards to nvfuser_direct; put here by fusioncache.")
        shim.compute_tensor_descriptor = nvfuser_direct.compute_tensor_descriptor  # type: ignore[attr-defined]
        shim.version = nvfuser_direct.version  # type: ignore[attr-defined]
        shim.__spec__ = ModuleSpec("nvfuser", None)  # without one every find_spec for this module raises
        sys.modules["nvfuser"] = shim
    from fusioncache.thunder_adapter.accelerator_api import nvfuser_executor as executor
    from fusioncache.thunder_adapter.api import PrimIDs

    for table in (executor.ex.implmap, executor._translation_map):
        table.pop(PrimIDs.IOTA, None)
    return executor


def definition_text(graph: Graph) -> str:
    """Returns the function that defines a graph for nvFuser with contiguous inputs. CPU tensors become CUDA tensors.

    Raises:
        ValueError: if nvFuser is not installed, or cannot represent the graph; the message says what to do.
    """
    import torch

    if importlib.util.find_spec("nvfuser_direct") is None:
        raise ValueError(f"nvFuser writes the definition, and it is not installed. Seen working: {SEEN_WORKING}")
    if not any(isinstance(type_, TensorType) and type_.device == "cuda" for type_ in graph.inputs):
        graph = _move_to_gpu(graph)
    try:
        with nullcontext() if torch.cuda.is_available() else pretend_gpu():
            nvfuser_executor()
            return repr(define(graph, describe_contiguous(graph))).strip() + "\n"
    except Exception as error:  # any error of Thunder or nvFuser
        said = str(error).partition("\n")[0]
        raise ValueError(f"nvFuser has no definition for this template ({type(error).__name__}: {said})") from error


def _move_to_gpu(graph: Graph) -> Graph:
    return replace(graph, inputs=tuple(map(_move_type, graph.inputs)), ops=tuple(map(_move_op, graph.ops)))


def _move_op(op: Op) -> Op:
    args, outputs = tuple(map(_move_argument, op.args)), tuple(map(_move_type, op.outputs))
    return Op(op.name, args, outputs, tuple((name, _move_argument(arg)) for name, arg in op.kwargs))


def _move_type[T: ValueType | None](type_: T) -> T:
    return replace(type_, device="cuda") if isinstance(type_, TensorType) else type_


def _move_argument(arg: Arg) -> Arg:
    if isinstance(arg, tuple):
        return tuple(map(_move_argument, arg))
    return replace(arg, text="cuda:0") if isinstance(arg, Const) and arg.kind == "device" else arg
