"""nvFuser's code for any sizes: its definition, the shapes of its results, and kernels for other sizes.

In a general region's definition sizes that vary are symbolic extents, other variables are inputs. Thunder's translators
write most operations, and ours those for which Thunder wants plain sizes. Writing one needs nvFuser, and no GPU.

nvFuser forgets that a result is expanded where one definition does for all lengths of a slice:

    t1 = slice(table, [0, 0], [length, 64])
    t2 = broadcast_in_dim(t1, [2, 4, length, 64], [2, 3])      has the shape [1, 1, length, 64], and the right elements

One kernel does for many sizes, but not for all: where there are fewer elements than a GPU works on at a time, nvFuser
takes narrower vectors, and where there are fewer rows than it has multiprocessors, it sums otherwise. It holds Python's
lock while it compiles, so that no thread can do so beside the steps. So as soon as a definition is there it is executed
for sizes that are not far away, twice as large and down to a sixteenth, the next ones first, until that took as long as
its own kernel did. Sizes further away are less likely to come, and some kernels take seconds. What is executed are
zeros of these sizes. Whether the region is one at all with them is asked of torch first, with tensors that have no
memory.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from math import gcd, prod
from typing import Any

import torch

from fusioncache.backends.api import GeneralFunction, Run
from fusioncache.backends.eager import Eager
from fusioncache.backends.nvfuser.definition import define, describe_arguments, nvfuser_executor
from fusioncache.ir import Const, Declined, GeneralRegion, Ref, Scope, TensorType, Value, ValueType
from fusioncache.ir.graph import Arg

Shape = tuple[int, ...]


def find_sizes(general: GeneralRegion, values: Sequence[Value]) -> Mapping[int, int]:
    """Returns the variables that are sizes, by the numbers of their values in the graph."""
    inputs, found = general.graph.inputs, {}
    number = len(inputs) - sum(place is None for place in general.places)
    for value, place in zip(values, general.places, strict=True):
        if place is None:
            index, number = number, number + 1
        else:
            type_ = inputs[place[0]]
            assert isinstance(type_, TensorType)
            size = type_.shape[place[1]]
            assert isinstance(size, Ref)
            index = size.index
        if isinstance(value, int):
            found[index] = value
    return found


def fill_shape(type_: ValueType | None, sizes: Mapping[int, int]) -> Shape | None:
    """Returns the shape of a tensor for these sizes; None if it is not known, or there is no tensor."""
    if not isinstance(type_, TensorType):
        return None
    shape = tuple(sizes.get(size.index) if isinstance(size, Ref) else size for size in type_.shape)
    return None if None in shape else shape  # type: ignore[return-value]


def find_result_shapes(general: GeneralRegion, values: Sequence[Value]) -> tuple[Shape | None, ...]:
    """Returns the shape of each result of a region with these values; None for one of which it is not known."""
    graph, sizes = general.graph, find_sizes(general, values)
    types = [*graph.inputs, *([None] * graph.sizes), *(type_ for op in graph.ops for type_ in op.outputs)]
    return tuple(fill_shape(types[output], sizes) for output in graph.outputs)


def expand_results(run: Run, general: GeneralRegion, values: Sequence[Value]) -> Run:
    """Returns a function that gives what another one does, expanded to the shapes that the region has.

    What is none of these shapes even so stays as it is; and all does, where the arguments are not what they should be:
    Thunder may be mistaken about those.

    Args:
        run: a function for any sizes.
        general: its region.
        values: of the variables.
    """
    shapes, sizes = find_result_shapes(general, values), find_sizes(general, values)

    def call(args: Sequence[Any]) -> Sequence[Any]:
        results = run(args)
        if all(shape is None or result.shape == shape for result, shape in zip(results, shapes, strict=True)):
            return results
        declared = (fill_shape(type_, sizes) for type_ in general.graph.inputs)
        known = zip(args, declared, strict=False)  # behind those of the regions come variables that are numbers
        if not all(shape is None or arg.shape == shape for arg, shape in known):
            return results
        return [_expand(result, shape) for result, shape in zip(results, shapes, strict=True)]

    return call


def _expand(result: Any, shape: Shape | None) -> Any:
    if shape is None or result.dim() != len(shape):
        return result
    fits = all(size in (1, wanted) for size, wanted in zip(result.shape, shape, strict=True))
    return result.expand(shape) if fits else result


_INTEGER = re.compile(r"(?<![\w.-])(?<!dim=)[1-9]\d*(?![\w.])")
"""An integer of a definition that may be made of a size: not 0, -1, or the dimension whose size is asked for."""


def define_general(general: GeneralRegion, layouts: Sequence[Any]) -> Any:
    """Returns a general region as a ``FusionDefinition``.

    Args:
        general: the region.
        layouts: of the arguments: see ``describe_arguments``. There are none for the variables among the inputs.

    Raises:
        Declined: if the definition has an integer that those of the regions have not.
        Exception: whatever Thunder or nvFuser raise.
    """
    definition = define(general.graph, layouts, TRANSLATORS)
    # Where a size is 1, a definition of sizes that are known may leave out a dimension that the region has.
    known = {each for op in general.graph.ops for each in _list_integers((*op.args, *(arg for _, arg in op.kwargs)))}
    _check_integers(definition, known, [define(region, layouts) for region in general.regions])
    return definition


def _list_integers(arg: Arg) -> Iterator[str]:
    """Yields the integers in an argument of an operation, as a definition has them."""
    if isinstance(arg, tuple):
        for each in arg:
            yield from _list_integers(each)
    elif isinstance(arg, Const) and arg.kind == "int":
        yield arg.text


def _check_integers(definition: Any, known: AbstractSet[str], others: Sequence[Any]) -> None:
    """Refuses a definition with an integer that is neither known nor in all others: it would be made of some size."""
    common = set.intersection(*(set(_INTEGER.findall(repr(other))) for other in others))
    if not (common | known).issuperset(_INTEGER.findall(repr(definition))):
        raise Declined("a size that nvFuser's definition takes for constant", Scope.GENERAL)


def _full(shape: Sequence[Any], fill_value: Any, *, device: Any, dtype: Any, fd: Any, lc_to_nv_map: Any) -> Any:
    executor = nvfuser_executor()
    sizes = [executor.getnv(size, fd, lc_to_nv_map) for size in shape]
    fill = executor.getnv(fill_value, fd, lc_to_nv_map)
    executor._select_device(fd, device)
    return fd.ops.full(sizes, fill, executor.lcdtype_to_nvdtype(dtype))


def _pad(a: Any, padding_value: Any, padding_config: Sequence[Any], *, fd: Any, lc_to_nv_map: Any) -> Any:
    executor = nvfuser_executor()
    widths = [
        executor.getnv(width, fd, lc_to_nv_map) for low, high, _ in reversed(padding_config) for width in (low, high)
    ]
    tensor = executor.getnv(a, fd, lc_to_nv_map)
    return fd.ops.pad(tensor, widths, executor.getnv(padding_value, fd, lc_to_nv_map))


TRANSLATORS: Mapping[str, Callable[..., Any]] = {"FULL": _full, "PAD": _pad}
"""Our translators, by the name of the operation's id."""


logger = logging.getLogger("fusioncache")

MOST_BYTES = 16 << 20
"""How many bytes the arguments for larger sizes may have. Those for smaller ones take no more than is there."""
_FACTORS = (0.5, 2.0, 0.25, 0.125, 0.0625)
_LEAST = 2
"""Sizes of 1 and 0 are never general."""


def compile_for_other_sizes(
    fit: Callable[[Sequence[Value]], Run],
    general: GeneralRegion,
    args: Sequence[Any],
    values: Sequence[Value],
    seconds: float,
) -> int:
    """Executes a definition for other sizes than those of its first arguments, and returns for how many.

    Whatever goes wrong, the definition works for the sizes that it was compiled for.

    Args:
        fit: takes values of the variables, and returns what executes the definition for arguments with these.
        general: what the definition is of.
        args: the first arguments. Nothing writes into them.
        values: of the variables there.
        seconds: that the kernel for these took. When so many more were spent, no other size is tried.
    """
    start, done = time.perf_counter(), 0
    try:
        for other_args, other_values in make_arguments(general, args, values):
            fit(other_values)(other_args)
            done += 1
            if time.perf_counter() - start > seconds:
                break
    except Exception as error:  # as where there is no memory for them
        logger.info("a definition is not compiled for other sizes", exc_info=error)
    return done


def make_arguments(
    general: GeneralRegion, args: Sequence[Any], values: Sequence[Value]
) -> Iterator[tuple[Sequence[Any], Sequence[Value]]]:
    """Yields arguments for other sizes, zeros that lie as the given ones do, and the values of the variables there.

    Args:
        general: a region.
        args: of one of its instances.
        values: of the variables there.
    """
    most = max(MOST_BYTES, sum(arg.nbytes for arg in args if isinstance(arg, torch.Tensor)))
    layouts, compute = describe_arguments(args), Eager().compile_general(general, args, values)
    for others in list_values(general, values):
        types = general.graph.inputs[: len(args)]
        sizes = find_sizes(general, others)
        resized = [(arg, _resize(type_, sizes)) for arg, type_ in zip(args, types, strict=True)]
        if sum(prod(shape) * arg.element_size() for arg, shape in resized if shape is not None) > most:
            continue
        made = [arg if shape is None else _make_zeros(arg, shape) for arg, shape in resized]
        if describe_arguments(made) == layouts and _is_region(general, compute, made, others):
            yield made, others


def list_values(general: GeneralRegion, values: Sequence[Value]) -> Iterator[tuple[Value, ...]]:
    """Yields the values of a region's variables for other sizes than it has with these.

    Where sizes did not grow together in all regions that it was made of, it is unknown which go together, and there
    are none.
    """
    sizes = [[value for value in each if isinstance(value, int)] for each in (values, *general.values)]
    if not sizes[0]:
        return
    share, *others = [tuple(size // gcd(*each) for size in each) for each in sizes]
    if any(other != share for other in others):
        return
    parts = [int(factor * gcd(*sizes[0])) for factor in _FACTORS]
    for part in (part for part in parts if part * min(share) >= _LEAST):
        grown = iter([part * each for each in share])
        yield tuple(next(grown) if isinstance(value, int) else value for value in values)


def _make_zeros(arg: torch.Tensor, shape: Shape) -> torch.Tensor:
    """Returns zeros whose strides are in the order of the argument's. As indices they are right for any table."""
    order = sorted(range(arg.dim()), key=lambda dimension: (-arg.stride(dimension), dimension))
    zeros = torch.zeros([shape[dimension] for dimension in order], dtype=arg.dtype, device=arg.device)
    return zeros.permute([order.index(dimension) for dimension in range(arg.dim())])


def _resize(type_: ValueType, sizes: Mapping[int, int]) -> Shape | None:
    """Returns the shape of a tensor for these sizes; None if it is the same for all."""
    varies = isinstance(type_, TensorType) and any(isinstance(size, Ref) for size in type_.shape)
    return fill_shape(type_, sizes) if varies else None


def _is_region(general: GeneralRegion, compute: GeneralFunction, args: Sequence[Any], values: Sequence[Value]) -> bool:
    """True if torch makes results of the very shapes that the region has with these values."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with torch.no_grad(), FakeTensorMode() as mode, _without_log("torch._subclasses.fake_tensor"):
        fakes = [mode.from_tensor(arg) if isinstance(arg, torch.Tensor) else arg for arg in args]
        try:
            results = compute(fakes, values)(fakes)
        except Exception:  # whatever torch says of sizes that do not fit each other
            return False
    shapes = find_result_shapes(general, values)
    return all(tuple(result.shape) == shape for result, shape in zip(results, shapes, strict=True))


@contextmanager
def _without_log(name: str) -> Iterator[None]:
    """Lets torch log nothing: it calls sizes that do not fit each other an error, and to ask is the purpose here."""
    logger = logging.getLogger(name)
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
