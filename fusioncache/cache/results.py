"""Corrects the results of a region to the strides and aliasing that torch's operations would give.

The expected results are computed on tensors without memory, of the device ``meta``. Strides of elementwise kernels come
from ``template/strides.py``; views are computed by torch.

Thunder does not model strides. If results have other strides than those of plain Thunder, later code behaves
differently or raises an error, such as ``view(-1)`` or a guard of ``torch.compile``. A compiler may also return one
object for two results, or an argument as a result.

So each first call for a layout checks its results, and corrects wrong ones in this call and later ones. If all are
right, later calls do no extra work.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import torch

from fusioncache.backends.api import Run
from fusioncache.backends.bound_symbols import decode_literal, torch_dtype
from fusioncache.ir import Arg, Const, Declined, Graph, Instance, Op, Ref, Scope, TensorType
from fusioncache.ir.graph import argument_refs, pick
from fusioncache.ir.ops import CHANNELS, CONVERT, COPY, ELEMENTWISE, RESHAPE, VIEW
from fusioncache.process.warning import log_errors, logger
from fusioncache.template.strides import Strided, fill_shape, strided_of, strides_of


@dataclass(frozen=True, slots=True)
class _Argument:
    """An argument of a call.

    Attributes:
        expected: a tensor of its layout without memory; for a number, the number.
        identity: ``id`` of the object.
        memory: of a tensor, as ``_memory`` returns it.
        offset: of the tensor's first element in that memory.
    """

    expected: Any
    identity: int
    memory: int | None = None
    offset: int = 0


def expect_layouts(graph: Graph, inputs: Sequence[Strided | None]) -> list[Strided | None]:
    """Returns the shapes and strides of a region's results, in its own order; None where they are not known.

    Args:
        graph: the region, as plain Thunder lays out its values.
        inputs: their shapes and strides; None where they are not known, and for numbers.
    """
    with torch.inference_mode(False):
        args = [
            make_meta(laid, torch_dtype(type_.dtype)) if laid is not None and isinstance(type_, TensorType) else None
            for type_, laid in zip(graph.inputs, inputs, strict=True)
        ]
        return [None if value is None else strided_of(value) for value in _lay_out(graph, args)]


def _lay_out(graph: Graph, inputs: Sequence[Any]) -> list[Any]:
    """Returns the results that torch computes for tensors without memory. An input of None is not known."""
    values = [*inputs, *[None] * graph.sizes]
    unknown = {index for index, value in enumerate(inputs) if value is None}
    for type_, value in zip(graph.inputs, inputs, strict=True):
        if isinstance(type_, TensorType) and value is not None:
            for size, actual in zip(type_.shape, value.shape, strict=True):
                if isinstance(size, Ref) and values[size.index] is None:
                    values[size.index] = actual
            if fill_shape(type_, values) != tuple(value.shape):
                raise ValueError("an argument of another size")
    for op, first in graph.results():
        try:
            if not unknown.isdisjoint(index for _, index in argument_refs(op)):
                raise Declined(op.name, Scope.VALUE)
            values += _evaluate(op, values)
        except Declined as reason:
            reason.require(Scope.VALUE)
            logger.info("how %s lays out its results is not known", reason)
            unknown.update(range(first, first + len(op.outputs)))
            values += [None] * len(op.outputs)
    return [values[index] for index in graph.outputs]


def _evaluate(op: Op, values: Sequence[Any]) -> Sequence[Any]:
    function = _TORCH.get(op.name)
    found = None if function is None else function(op, decode_literal(op.args, values.__getitem__), values)
    if found is not None:
        return found if isinstance(found, tuple) else (found,)
    tensors = [value for _, index in argument_refs(op) if isinstance(value := values[index], torch.Tensor)]
    operands = list(map(strided_of, tensors))
    op = replace(op, args=tuple(_as_literal(arg, values) for arg in op.args))
    return [_lay_out_result(op, operands, type_, values) for type_ in op.outputs]


def _as_literal(arg: Arg, values: Sequence[Any]) -> Arg:
    """Returns a literal for an argument that is a number, because layouts do not depend on its value."""
    is_number = isinstance(arg, Ref) and not isinstance(values[arg.index], torch.Tensor)
    return Const("int", "0") if is_number else arg


def _lay_out_result(op: Op, operands: Sequence[Strided], type_: Any, values: Sequence[Any]) -> Any:
    """Returns a new tensor with the layout of a result; None if the result is not a tensor.

    Raises:
        Declined: if the layout is not known.
    """
    if not isinstance(type_, TensorType):
        return None
    laid = strides_of(op, operands, fill_shape(type_, values))
    if laid is None:
        raise Declined(op.name, Scope.VALUE)
    return make_meta(laid, torch_dtype(type_.dtype))


def _result_shape(op: Op, values: Sequence[Any]) -> tuple[int, ...]:
    type_ = op.outputs[0]
    assert isinstance(type_, TensorType)
    return fill_shape(type_, values)


def _expand(op: Op, args: Sequence[Any], values: Sequence[Any]) -> Any:
    tensor, _, dims = args
    shape = _result_shape(op, values)
    for dimension in range(len(shape)):
        if dimension not in dims:
            tensor = tensor.unsqueeze(dimension)
    return tensor.expand(shape)


def _slice(op: Op, args: Sequence[Any], values: Sequence[Any]) -> Any:
    named = [decode_literal(arg, values.__getitem__) for name, arg in op.kwargs if name == "strides"]
    tensor, starts, stops, *strides = [*args, *named]
    steps = next(filter(None, strides), [1] * len(starts))
    return tensor[tuple(slice(*each) for each in zip(starts, stops, steps, strict=True))]


def _convert(op: Op, args: Sequence[Any], values: Sequence[Any]) -> Any:
    """Returns the operand if it has the result's dtype, as torch does; None otherwise."""
    tensor, type_ = args[0], op.outputs[0]
    assert isinstance(type_, TensorType)
    is_same = isinstance(tensor, torch.Tensor) and tensor.dtype == torch_dtype(type_.dtype)
    return tensor if is_same else None


def _variance(op: Op, args: Sequence[Any], values: Sequence[Any]) -> dict[str, Any]:
    return {"dim": args[1], "correction": decode_literal(dict(op.kwargs)["correction"], values.__getitem__)}


def _pad(op: Op, args: Sequence[Any], values: Sequence[Any]) -> Any:
    tensor, _, config = args
    if any(dilation for _, _, dilation in config):
        return torch.empty(_result_shape(op, values), dtype=tensor.dtype, device="meta")
    return torch.constant_pad_nd(tensor, [side for low, high, _ in reversed(config) for side in (low, high)])


def _channels(op: Op, args: Sequence[Any], values: Sequence[Any]) -> Any:
    return torch.empty_like(args[0], memory_format=torch._prims_common.suggest_memory_format(args[0]))


def _elementwise(op: Op, args: Sequence[Any], values: Sequence[Any]) -> Any:
    """Returns the result of one kernel. On a CPU torch first copies operands whose dtype differs from the kernel's."""
    tensors, type_ = args, op.outputs[0]
    assert isinstance(type_, TensorType)
    if type_.device == "cpu":
        dtype = torch_dtype(type_.dtype)
        if not dtype.is_floating_point and not dtype.is_complex:
            dtype = reduce(torch.promote_types, (torch.result_type(tensors[0], tensor) for tensor in tensors))
        tensors = [tensor if tensor.dtype == dtype else _copy_to(tensor, dtype) for tensor in tensors]
    return _lay_out_result(op, list(map(strided_of, tensors)), type_, values)


def _copy_to(tensor: Any, dtype: Any) -> Any:
    strided = strided_of(tensor)
    laid = strides_of(Op(CONVERT, (Ref(0),), ()), [strided], strided.shape)
    assert laid is not None
    return make_meta(laid, dtype)


def make_meta(layout: Strided, dtype: Any = None) -> Any:
    """Returns a tensor of this layout without memory."""
    return torch.empty_strided(layout.shape, layout.strides, dtype=dtype, device="meta")


_Evaluate = Callable[[Op, Sequence[Any], Sequence[Any]], Any]
"""Takes an op, its decoded arguments and all values so far; returns the results, or None if its strides decide."""

_TORCH: Mapping[str, _Evaluate] = {
    CHANNELS: _channels,
    CONVERT: _convert,
    ELEMENTWISE: _elementwise,
    COPY: lambda op, args, values: args[1],
    RESHAPE: lambda op, args, values: args[0].reshape(_result_shape(op, values)),
    VIEW: lambda op, args, values: args[0].view(args[0].shape),
    "prims.amax": lambda op, args, values: args[0].amax(args[1]),
    "prims.amin": lambda op, args, values: args[0].amin(args[1]),
    "prims.broadcast_in_dim": _expand,
    "prims.cat": lambda op, args, values: torch.cat(args[0], args[1]),
    "prims.lgamma": lambda op, args, values: args[0].lgamma(),
    "prims.pad": _pad,
    "prims.prod": lambda op, args, values: torch._refs.prod(args[0], args[1]),
    "prims.shallow_copy": lambda op, args, values: args[0],
    "prims.slice_prim": _slice,
    "prims.squeeze": lambda op, args, values: args[0].squeeze(args[1]),
    "prims.sum": lambda op, args, values: args[0].sum(args[1]),
    "prims.transpose": lambda op, args, values: args[0].permute(args[1]),
    "prims.var": lambda op, args, values: args[0].var(**_variance(op, args, values)),
    "prims.var_mean": lambda op, args, values: torch.var_mean(args[0], **_variance(op, args, values)),
}
"""What plain Thunder calls for operations other than elementwise kernels: views, whose aliasing matters too, and
kernels whose result layout only torch can compute."""


Fix = Callable[[Sequence[Any], list[Any]], None]
"""Takes the arguments and the results of a call, and replaces results."""


def with_torch_layouts(
    run: Run, instance: Instance, args: Sequence[Any], results: Sequence[Any]
) -> tuple[Run, Sequence[Any]]:
    """Returns a function whose results have torch's strides and aliasing, and its results for these arguments.

    Args:
        run: computes the region, for arguments of this layout.
        instance: the region.
        args: of the first call, in the order of the template.
        results: of the first call.
    """
    fixes: Sequence[Fix] = ()
    with log_errors("what torch's results would be is not known"):  # their values are right, only layouts may differ
        with torch.inference_mode(False):  # in inference mode tensors do not record that they are views
            given = [
                _Argument(
                    torch.empty_strided(arg.shape, arg.stride(), dtype=arg.dtype, device="meta"),
                    id(arg),
                    arg.untyped_storage()._cdata,
                    arg.storage_offset(),
                )
                if isinstance(arg, torch.Tensor)
                else _Argument(arg, id(arg))
                for arg in args
            ]
            inputs = pick([each.expected for each in given], instance.inputs)
            laid = _lay_out(instance.plain or instance.region, inputs)
        fixes = _find_fixes(given, pick(laid, instance.outputs), results)
    if not fixes:
        return run, results

    def run_and_fix(args: Sequence[Any]) -> Sequence[Any]:
        return _fix(fixes, args, run(args))

    return run_and_fix, _fix(fixes, args, results)


def _fix(fixes: Sequence[Fix], args: Sequence[Any], results: Sequence[Any]) -> Sequence[Any]:
    fixed = list(results)
    for fix in fixes:
        fix(args, fixed)
    return fixed


def _find_fixes(given: Sequence[_Argument], expected: Sequence[Any], results: Sequence[Any]) -> list[Fix]:
    """Returns the corrections that make results as expected.

    Args:
        given: the arguments.
        expected: torch's results, without memory; None for unknown results and for results that are not tensors.
        results: of the call.
    """
    sources = {_memory(arg.expected): index for index, arg in enumerate(given) if arg.memory is not None}
    taken: set[int | None] = {arg.memory for arg in given if arg.memory is not None}
    fixes: list[Fix] = []
    changed: set[int] = set()
    for memory, group in _group_by_memory(expected).items():
        if memory in sources:
            wrong = _find_wrong_views(group, given[sources[memory]], results)
            fixes += [_take_view_of(sources[memory], index, group[index]) for index in wrong]
            changed.update(wrong)
        elif not _shares_alike(group, results) or _memory(results[next(iter(group))]) in taken:
            fixes.append(_share(group, results, taken))
            changed.update(group)
        taken.update(_memory(results[index]) for index in group)
    fixes += _find_same(given, expected, results, changed)
    return [*fixes, *_find_unlike(given, expected, results, changed)]


def _group_by_memory(tensors: Sequence[Any]) -> Mapping[int, dict[int, Any]]:
    """Returns non-empty tensors by position, grouped by their memory."""
    groups: dict[int, dict[int, Any]] = defaultdict(dict)
    for index, tensor in enumerate(tensors):
        if isinstance(tensor, torch.Tensor) and tensor.numel():
            groups[_memory(tensor)][index] = tensor
    return groups


def _memory(tensor: Any) -> int:
    return int(tensor.untyped_storage()._cdata)


def _has_strides(tensor: Any, expected: Any) -> bool:
    """True if strides are as expected, ignoring dimensions of size 1."""
    pairs = zip(expected.shape, tensor.stride(), expected.stride(), strict=True)
    return all(size == 1 or one == other for size, one, other in pairs)


def _find_wrong_views(group: Mapping[int, Any], base: _Argument, results: Sequence[Any]) -> list[int]:
    """Returns the positions of results that should be views of an argument, and are not the right ones."""
    return [
        index
        for index, tensor in group.items()
        if _memory(results[index]) != base.memory
        or results[index].storage_offset() != base.offset + tensor.storage_offset()
        or not _has_strides(results[index], tensor)
        or not _is_view_if(tensor, results[index])
    ]


def _take_view_of(source: int, index: int, expected: Any) -> Fix:
    shape, strides, offset = expected.shape, expected.stride(), expected.storage_offset()

    def take(args: Sequence[Any], results: list[Any]) -> None:
        base = args[source]
        results[index] = base.as_strided(shape, strides, base.storage_offset() + offset)

    return take


def _shares_alike(group: Mapping[int, Any], results: Sequence[Any]) -> bool:
    """True if results have the expected strides, and share one memory with the expected offsets."""
    offsets = {results[index].storage_offset() - tensor.storage_offset() for index, tensor in group.items()}
    return (
        len({_memory(results[index]) for index in group}) == 1
        and (len(group) == 1 or len(offsets) == 1)
        and all(_has_strides(results[index], tensor) for index, tensor in group.items())
        and (len(group) == 1 or all(_is_view_if(tensor, results[index]) for index, tensor in group.items()))
    )


def _is_view_if(expected: Any, result: Any) -> bool:
    """True if autograd treats a result as a view where it should."""
    return not expected._is_view() or result._is_view() or result.is_inference()


def _share(group: Mapping[int, Any], results: Sequence[Any], taken: Collection[int | None]) -> Fix:
    """Returns a fix that makes results share one memory: that of the result that covers it, or new memory."""
    whole = next((index for index, tensor in group.items() if not tensor._is_view()), None)
    if whole is None:
        return _copy_all(group)
    stays = _has_strides(results[whole], group[whole]) and _memory(results[whole]) not in taken
    shape, strides = group[whole].shape, group[whole].stride()
    views = [(i, t.shape, t.stride(), t.storage_offset()) for i, t in group.items() if i != whole]

    def share(args: Sequence[Any], results: list[Any]) -> None:
        base = results[whole]
        if not stays:
            base = torch.empty_strided(shape, strides, dtype=base.dtype, device=base.device).copy_(base)
            results[whole] = base
        for index, shape_, strides_, offset in views:
            results[index] = base.as_strided(shape_, strides_, base.storage_offset() + offset)

    return share


def _copy_all(group: Mapping[int, Any]) -> Fix:
    """Returns a fix that makes results share new memory that none of them covers."""
    first = next(iter(group.values()))
    size = first.untyped_storage().nbytes() // first.element_size()
    parts = [(index, tensor.shape, tensor.stride(), tensor.storage_offset()) for index, tensor in group.items()]

    def copy(args: Sequence[Any], results: list[Any]) -> None:
        tensor = results[parts[0][0]]
        memory = torch.empty(size, dtype=tensor.dtype, device=tensor.device)
        for index, shape, strides, offset in parts:
            part = memory.as_strided(shape, strides, offset)
            _write(part, results[index])
            results[index] = part

    return copy


def _write(part: Any, values: Any) -> None:
    """Copies values into a view, and writes each element of its memory only once."""
    for dimension, stride in enumerate(part.stride()):
        if stride == 0:
            part, values = part.narrow(dimension, 0, 1), values.narrow(dimension, 0, 1)
    part.copy_(values)


def _find_same(
    given: Sequence[_Argument], expected: Sequence[Any], results: Sequence[Any], changed: Collection[int]
) -> Iterator[Fix]:
    """Yields fixes for results that are the same object as an argument or another result, but should not be."""
    objects: dict[int, list[Any]] = defaultdict(list)
    for arg in given:
        objects[arg.identity].append(arg.expected)
    for index, (result, tensor) in enumerate(zip(results, expected, strict=True)):
        if index in changed or not isinstance(tensor, torch.Tensor):
            continue
        known = objects[id(result)]
        if known and not any(tensor is each for each in known):
            yield _take_view(index)
        known.append(tensor)


def _find_unlike(
    given: Sequence[_Argument], expected: Sequence[Any], results: Sequence[Any], changed: Collection[int]
) -> Iterator[Fix]:
    """Yields fixes that set torch's strides in dimensions of size 1, where they do not affect addressing."""
    for index, (result, tensor) in enumerate(zip(results, expected, strict=True)):
        if index in changed or not isinstance(tensor, torch.Tensor) or any(tensor is arg.expected for arg in given):
            continue
        if result.stride() != tensor.stride():
            yield _set_strides(index, tensor)


def _set_strides(index: int, expected: Any) -> Fix:
    shape, strides = expected.shape, expected.stride()

    def set_(args: Sequence[Any], results: list[Any]) -> None:
        results[index].as_strided_(shape, strides)

    return set_


def _take_view(index: int) -> Fix:
    def take(args: Sequence[Any], results: list[Any]) -> None:
        results[index] = results[index].view(results[index].shape)

    return take
