"""nvFuser's code for any sizes, and the code for one size that is made from it.

In a general region's definition, sizes that vary are symbolic extents, and other variables are inputs. Thunder's
translators write most operations, and fusioncache's those for which Thunder requires plain sizes. Writing a definition
needs nvFuser, and no GPU.

Compiling such a definition takes as long as for one size. For further sizes, nvFuser finds the kernels in a few
milliseconds, or compiles one more. It uses narrower vectors if there are fewer elements than a GPU processes at a time,
and another reduction if there are fewer rows than multiprocessors. It cannot store a compiled definition. But its
launches for one size can be stored, like any launch: see ``persistence.py``. So a process that compiles holds its
definitions, and derives the launches of each size from them. On an H200 that takes 10 ms for each of the ten regions of
a narrow Llama; compiling them for one size takes 16 s.

nvFuser forgets that a result is expanded where one definition serves all lengths of a slice:

    t1 = slice(table, [0, 0], [length, 64])
    t2 = broadcast_in_dim(t1, [2, 4, length, 64], [2, 3])      has the shape [1, 1, length, 64], and the right elements
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import Any

from fusioncache.backends.api import Compiled, Run
from fusioncache.backends.bound_symbols import read_numbers
from fusioncache.backends.nvfuser import persistence
from fusioncache.backends.nvfuser.backend import NvFuser
from fusioncache.backends.nvfuser.definition import (
    CompiledDefinition,
    define,
    define_for,
    describe_arguments,
    nvfuser_executor,
)
from fusioncache.backends.torch_settings import is_capturing, is_out_of_memory
from fusioncache.ir import (
    Declined,
    GeneralInstance,
    GeneralRegion,
    Graph,
    Ref,
    Scope,
    TensorType,
    Value,
    ValueType,
)
from fusioncache.ir.graph import literals_of
from fusioncache.process.forks import LruMap
from fusioncache.process.warning import logger

MOST_DEFINITIONS = 256
"""The most compiled definitions that a process holds. The least recently used one is dropped."""

Shape = tuple[int, ...]


def find_sizes(general: GeneralRegion, values: Sequence[Value]) -> Mapping[int, int]:
    """Returns the values of the variables that are sizes, by their numbers in the graph."""
    shapes: list[Any] = [type_.shape if isinstance(type_, TensorType) else () for type_ in general.graph.inputs]
    numbers = count(len(general.regions[0].inputs))  # of the variables that are inputs
    found = {}
    for value, place in zip(values, general.places, strict=True):
        index = next(numbers) if place is None else shapes[place[0]][place[1]].index
        if isinstance(value, int):
            found[index] = value
    return found


def fill_shape(type_: ValueType | None, sizes: Mapping[int, int]) -> Shape | None:
    """Returns the shape of a tensor for these sizes; None if it is unknown, or the value is not a tensor."""
    if not isinstance(type_, TensorType):
        return None
    shape = tuple(sizes.get(size.index) if isinstance(size, Ref) else size for size in type_.shape)
    return None if None in shape else shape  # type: ignore[return-value]


def expand_results(run: Run, general: GeneralRegion, values: Sequence[Value]) -> Run:
    """Returns a function that expands the results of another one to the region's shapes.

    It raises ``Declined`` if a result cannot be expanded to its shape. But all results are returned unchanged if
    arguments do not have the declared shapes: Thunder may be wrong about these.

    Args:
        run: a function for any sizes.
        general: its region.
        values: of the variables.
    """
    graph, sizes = general.graph, find_sizes(general, values)
    shapes = [fill_shape(type_, sizes) for type_ in graph.types]
    wanted = [shapes[output] for output in graph.outputs]

    def call(args: Sequence[Any]) -> Sequence[Any]:
        results = run(args)
        if _have_shapes(results, wanted) or not _have_shapes(args, shapes[: len(args)]):
            return results
        return [_expand(result, shape) for result, shape in zip(results, wanted, strict=True)]

    return call


def _have_shapes(tensors: Sequence[Any], shapes: Sequence[Shape | None]) -> bool:
    """Returns whether tensors have these shapes, as far as these are known."""
    return all(shape is None or tensor.shape == shape for tensor, shape in zip(tensors, shapes, strict=True))


def _expand(result: Any, shape: Shape | None) -> Any:
    if shape is None:
        return result
    if result.dim() != len(shape) or any(
        size not in (1, wanted) for size, wanted in zip(result.shape, shape, strict=True)
    ):
        raise Declined("a result of another shape than the region's", Scope.GENERAL)
    return result.expand(shape)


_INTEGER = re.compile(r"(?<![\w.-])(?<!dim=)[1-9]\d*(?![\w.])")
"""An integer in a definition that may come from a size: not 0, -1, or the dimension of a size query."""


def define_general(general: GeneralRegion, layouts: Sequence[Any]) -> Any:
    """Returns a general region as a ``FusionDefinition``.

    Args:
        general: the region.
        layouts: of the arguments: see ``describe_arguments``. There are none for the variables among the inputs.

    Raises:
        Declined: if the definition has an integer that may come from a size: see ``check_integers``.
        Exception: any error of Thunder or nvFuser.
    """
    definition = define(general.graph, layouts, TRANSLATORS)
    check_integers(definition, general.graph, [define(region, layouts) for region in general.regions])
    return definition


def check_integers(definition: Any, graph: Graph, others: Sequence[Any]) -> None:
    """Raises an error if a definition has an integer that may come from a size.

    Allowed are the integers in operations of its graph, and those in all definitions for one size.

    Raises:
        Declined: if there is another one.
    """
    # A definition for known sizes may omit a dimension of size 1 that the region has.
    known = {const.text for const in literals_of(graph) if const.kind == "int"}
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
"""fusioncache's translators, by the name of the operation's id."""


@dataclass(frozen=True, slots=True)
class CompiledGeneral:
    """A general region that nvFuser compiled in this process.

    Attributes:
        general: the region.
        definition: its compiled definition.
        seconds: the duration of the compilation.
    """

    general: GeneralRegion
    definition: CompiledDefinition
    seconds: float

    def fit(self, values: Sequence[Value]) -> CompiledDefinition:
        """Returns a definition that takes the arguments of an instance with these values of the variables."""
        run, numbers = self.definition.run, tuple(_read_numbers(self.general, values))
        fitted = expand_results(lambda args: run([*args, *numbers]), self.general, values)
        return CompiledDefinition(fitted, self.definition.definition, self.definition.device, numbers)


_Failure = tuple[str, Scope]
"""Reason and scope of a failed compile for any sizes. An exception would hold its frames, and with them all tensors.

The scope is ``GENERAL`` if other processes would fail as well, and ``STORING_NOW`` otherwise."""


@cache
def compiled_generals() -> LruMap[Hashable, CompiledGeneral | _Failure]:
    """Returns the general regions compiled in this process, by region, layouts of arguments and environment."""
    return LruMap(MOST_DEFINITIONS)


def persist_size(as_general: GeneralInstance, region: Graph, args: Sequence[Any], backend: NvFuser) -> Compiled[Run]:
    """Makes code for one size from code for any sizes: see ``Backend.persist_size``.

    Args:
        as_general: the region, as an instance of a general one.
        region: the same region.
        args: of the region.
        backend: the backend.
    """
    if is_capturing():
        raise Declined("a CUDA graph is being captured", Scope.STORING_NOW)
    general, switches = as_general.general, backend.switches
    try:
        persistence.check_persistable(region, args)
        code = find_code(general, args, as_general.values, backend)
        check_integers(code.definition.definition, general.graph, [define_for(region, args)])
        fitted = code.fit(as_general.values)
        persistence.compile_kept(fitted.definition, general.graph, [*args, *fitted.numbers], switches)
        device = persistence.find_device(region, args)
        artifacts, verified = persistence.make_artifacts(fitted, device, args, switches)
    except Declined as refusal:
        refusal.require(Scope.GENERAL, Scope.STORING, Scope.STORING_NOW)
        raise refusal if refusal.scope is not Scope.STORING else Declined(refusal.reason, Scope.GENERAL) from refusal
    except Exception as error:  # the size can be compiled alone, which may also take less memory
        logger.info("no code for one size is made of code for any", exc_info=error)
        raise Declined(f"keeping failed: {type(error).__name__}", Scope.STORING_NOW) from error
    fallback = persistence.compile_fallback(backend.compile, region)
    return Compiled(verified.launching(fallback).run, artifacts, None, alone_seconds=code.seconds)


def find_code(
    general: GeneralRegion, args: Sequence[Any], values: Sequence[Value], backend: NvFuser
) -> CompiledGeneral:
    """Returns the compiled code of a general region. Compiles it if this process has not done so yet.

    Raises:
        Declined: if nvFuser cannot compile it.
    """
    identity = general.graph, describe_arguments(args), backend.switches, tuple(sorted(backend.environment().items()))
    code, _ = compiled_generals().get_or_make(identity, lambda: _compile_general(general, args, values, backend))
    if not isinstance(code, CompiledGeneral):
        raise Declined(*code)
    return code


def _compile_general(
    general: GeneralRegion, args: Sequence[Any], values: Sequence[Value], backend: NvFuser
) -> CompiledGeneral | _Failure:
    start, definition = time.perf_counter(), None
    try:
        definition = define_general(general, describe_arguments(args))
        given = [*args, *_read_numbers(general, values)]
        compiled = persistence.compile_kept(definition, general.graph, given, backend.switches)
    except Declined as refusal:
        refusal.require(Scope.GENERAL)
        return refusal.reason, refusal.scope
    except Exception as error:
        if is_out_of_memory(error):
            raise
        logger.info("nothing is compiled for any sizes", exc_info=error)
        # Defining needs no device, so it fails in each process. CUDA's errors are not the region's fault.
        is_lasting = definition is None or backend.find_rejection(error) is not None
        return f"compile failed: {type(error).__name__}", Scope.GENERAL if is_lasting else Scope.STORING_NOW
    return CompiledGeneral(general, compiled, time.perf_counter() - start)


def _read_numbers(general: GeneralRegion, values: Sequence[Value]) -> Sequence[int | float]:
    """Returns the values of the variables that are inputs."""
    return read_numbers([value for value, place in zip(values, general.places, strict=True) if place is None])
