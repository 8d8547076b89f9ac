"""Finds the positions in the user's model that a trace's regions come from, from Thunder's data during compilation.

Thunder has the model, its parameters, source lines and times. For a graph of Dynamo it has only the lines of the
graph's generated code; torch has the user's lines.
"""

from __future__ import annotations

import re
import sysconfig
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from os.path import commonprefix
from typing import Any

from fusioncache.backends.bound_symbols import argument_names, result_names
from fusioncache.observe.record.observations import MOST_LINES, Line, Source
from fusioncache.thunder_adapter.api import FusionExecutor, PrimIDs, _compile_data
from fusioncache.transform.dynamo_graphs import is_graph
from fusioncache.transform.graph_names import graph_names_of_process

Module = tuple[str, ...]
"""The path of a module, such as ``("transformer", "h", "3")``."""

_DYNAMO_PARAMETER = re.compile(r"l_self_modules_(.+)_parameters_.+_")


@dataclass(frozen=True, slots=True)
class Compilation:
    """A model that Thunder compiles. Unknown attributes are None or empty.

    Attributes:
        model: the class of the module or the name of the function; with ``thunderfx`` also the part.
        parameters: the module of each parameter, by the parameter's name in traces. One in a list is its own module.
        lines: the source line of each value of the forward pass, by the value's name in traces.
        fuses: whether any executor fuses operations in general; None if not known.
        tracing: seconds of Thunder's tracing.
        fusing: seconds from the end of tracing to now.
    """

    model: str | None = None
    parameters: Mapping[str, Module] = field(default_factory=dict)
    lines: Mapping[str, Line] = field(default_factory=dict)
    fuses: bool | None = None
    tracing: float | None = None
    fusing: float | None = None


def current_compilation() -> Compilation:
    """Returns the current compilation. To be called between fusing the forward trace and making it callable."""
    data, stats = _compile_data.get()
    if data is None or stats is None:
        return Compilation()
    started, stopped = stats.last_trace_tracing_start, stats.last_trace_tracing_stop
    timed = 0 < started <= stopped
    return Compilation(
        model=_model_name(data.fn),
        parameters=_parameters((stats.last_prologue_traces or ())[:1]),
        lines=_lines(stats.last_traces or (), find_graph_lines(data.fn)),
        fuses=any(map(_makes_regions, data.executors_list)),
        tracing=(stopped - started) / 1e9 if timed else None,
        fusing=(time.perf_counter_ns() - stopped) / 1e9 if timed else None,
    )


def current_forward_trace() -> Any | None:
    """Returns the forward trace of the current compilation after its last pass; None outside of a compilation."""
    _, stats = _compile_data.get()
    return stats.last_traces[-1] if stats is not None and stats.last_traces else None


def _makes_regions(executor: Any) -> bool:
    """True if an executor fuses in general. Thunder also has one that fuses only the operations of a loss."""
    return isinstance(executor, FusionExecutor) and getattr(executor, "required_ops", None) is None


def _model_name(function: Any) -> str | None:
    import torch

    if (graph := graph_names_of_process().name_of(function)) is not None:
        return graph
    named = type(function) if isinstance(function, torch.nn.Module) else function
    name = getattr(named, "__name__", None)
    return name if isinstance(name, str) else None


def _parameters(prologues: Sequence[Any]) -> dict[str, Module]:
    owners: dict[str, Module] = {}
    for symbol in (symbol for prologue in prologues for symbol in prologue.bound_symbols):
        if symbol.sym.id is PrimIDs.UNPACK_PARAMETER:
            owners[symbol.output.name] = _module_of(symbol.args[1])
        elif symbol.sym.id is PrimIDs.UNPACK_GETITEM and (path := module_in_name(symbol.output.name)):
            owners[symbol.output.name] = path
    return owners


def module_in_name(name: str) -> Module:
    """Returns the module of a parameter that Dynamo made an argument of a graph; () for any other argument."""
    found = _DYNAMO_PARAMETER.fullmatch(name)
    return tuple(found[1].split("_modules_")) if found else ()


def _module_of(parameter: str) -> Module:
    path = tuple(parameter.split("."))
    return path if path[-1].isdigit() else path[:-1]


def _lines(traces: Sequence[Any], of_graph: Mapping[int, Line]) -> dict[str, Line]:
    """Returns the source line of each value. For a value that a pass renamed, it is in the trace of that pass.

    Args:
        traces: of the forward pass, in the order of the passes.
        of_graph: the user's line for each line of a graph's generated code.
    """
    lines: dict[str, Line] = {}
    seen: set[int] = set()
    for trace in traces:
        for symbol in trace.bound_symbols:
            if id(symbol) not in seen:
                seen.add(id(symbol))
                for name, line in _lines_in(symbol, None, of_graph):
                    lines.setdefault(name, line)  # a call may return its argument
    return lines


def _lines_in(symbol: Any, outer: Line | None, of_graph: Mapping[int, Line]) -> Iterator[tuple[str, Line]]:
    """Yields the lines of the values that a bound symbol defines. A nested symbol without a line has the outer line."""
    line = _line_of(symbol, of_graph) or outer
    for inner in symbol.subsymbols:
        yield from _lines_in(inner, line, of_graph)
    if line is not None:
        for name in result_names(symbol):
            yield name, line


def _line_of(symbol: Any, of_graph: Mapping[int, Line]) -> Line | None:
    file, number = symbol.source_filename, getattr(symbol.source_positions, "lineno", None)
    if isinstance(file, str) and is_generated(file):
        return of_graph.get(number) if isinstance(number, int) else None
    return Line(file, number, is_library(file)) if isinstance(file, str) and isinstance(number, int) else None


@cache
def is_library(file: str) -> bool:
    """True if a source file belongs to Python or to an installed package, not to the user."""
    installed = "/site-packages/" in file or "/dist-packages/" in file
    return installed or file.startswith(("<", *library_folders()))


@cache
def library_folders() -> tuple[str, ...]:
    """Returns the folders of Python's own modules, and those of torch and Thunder, which may be installed anywhere."""
    own = [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")]
    found = [find_spec(name) for name in ("torch", "thunder")]
    own += [folder for spec in found if spec is not None for folder in spec.submodule_search_locations or ()]
    return tuple(folder.rstrip("/") + "/" for folder in own)


_GENERATED = "<eval_with_key>"
"""The prefix of the file names that torch gives to the code of graphs."""
_FRAME = re.compile(r'File "(.+)", line (\d+), in ')


def is_generated(file: str) -> bool:
    """True if this is the file name of a graph's generated code."""
    return file.startswith(_GENERATED)


def find_graph_lines(function: Any) -> Mapping[int, Line]:
    """Returns the user's line for each line of a graph's generated code; none if the function is not a graph.

    torch maps each line of the code to a node, and has the stack trace of each node, whose last frame is used.

    Args:
        function: the function that Thunder compiles.
    """
    if not is_graph(function):
        return {}
    nodes = list(function.graph.nodes)
    start, numbers = getattr(function, "_prologue_start", 0), getattr(function, "_lineno_map", None) or {}
    found = {}
    for number, node in numbers.items():
        frames = _FRAME.findall(nodes[node].stack_trace or "") if node is not None and node < len(nodes) else ()
        if frames:
            file, line = frames[-1]
            found[start + number] = Line(file, int(line), is_library(file))
    return found


Near = tuple[int, Module]
"""The nearest operation with a parameter: its position in the trace, and the parameter's module."""


@dataclass(frozen=True, slots=True)
class Neighbours:
    """For each value of a trace, the nearest operations with parameters.

    Attributes:
        before: by the value's name, the last such operation that the value depends on.
        after: by the value's name, the first such operation that depends on the value.
    """

    before: Mapping[str, Near]
    after: Mapping[str, Near]


def find_neighbours(trace: Any, parameters: Mapping[str, Module]) -> Neighbours:
    """Returns the neighbours of every value. Linear in the trace."""
    steps = [
        (position, symbol, own_module(symbol, parameters))
        for position, symbol in enumerate(trace.bound_symbols)
        if computes(symbol)
    ]
    before: dict[str, Near] = {}
    for position, symbol, own in steps:
        given = (before[name] for name in argument_names(symbol) if name in before)
        near = (position, own) if own else max(given, default=None)
        if near is not None:
            before.update((name, before.get(name, near)) for name in result_names(symbol))
    after: dict[str, Near] = {}
    for position, symbol, own in reversed(steps):
        wanted = (after[name] for name in result_names(symbol) if name in after)
        near = (position, own) if own else min(wanted, default=None)
        if near is not None:
            after.update((name, min(near, after.get(name, near))) for name in argument_names(symbol))
    return Neighbours(before, after)


def computes(symbol: Any) -> bool:
    """True if a bound symbol computes values, rather than only unpack, delete or return them."""
    id_ = symbol.sym.id
    return id_ not in (PrimIDs.DEL, PrimIDs.RETURN) and not str(id_).startswith(("PrimIDs.UNPACK", "clear_mutable"))


def own_module(symbol: Any, parameters: Mapping[str, Module]) -> Module:
    """Returns the module of the parameters that a bound symbol takes; if they are of several layers, the last one's."""
    modules = [parameters[name] for name in argument_names(symbol) if name in parameters]
    shared = common_module(modules)
    return modules[-1] if modules and layer_of(shared) is None and layer_of(modules[-1]) is not None else shared


def layer_of(module: Module) -> int | None:
    """Returns the first number in the path of a module, or None."""
    return next((int(part) for part in module if part.isdigit()), None)


def common_module(modules: Iterable[Module]) -> Module:
    """Returns the innermost module that contains all of these."""
    return tuple(commonprefix(list(modules)))  # noqa: RUF071  # of tuples


@dataclass(frozen=True, slots=True)
class Sources:
    """The sources of the regions of one trace, and the data that a backward trace needs of its forward trace.

    Attributes:
        regions: the source of each region, by its position in the trace.
        modules: the module of each value of the trace, by the value's name.
        readers: the lines of the operations in regions that read a value, by the value's name.
    """

    regions: Mapping[int, Source] = field(default_factory=dict)
    modules: Mapping[str, Module] = field(default_factory=dict)
    readers: Mapping[str, tuple[Line, ...]] = field(default_factory=dict)


def find_sources(trace: Any, compilation: Compilation, forward: Sources | None = None) -> Sources:
    """Returns the sources of the regions of a trace. Linear in the trace.

    A region belongs to the module whose parameters it reads. If it reads none, it belongs to the innermost module
    around the nearest operations with parameters, before and after it. A region between two layers belongs to the later
    one in the model, if that is a layer. A region that only reads saved values belongs to the module of these.

    The lines of a region are those of its operations. The lines of a backward region are those of the forward
    operations that it recomputes, and of forward operations that read the same values.

    Args:
        trace: a final trace, with its regions as Thunder made them.
        compilation: the compilation that the trace belongs to.
        forward: the sources of the forward trace, if this is a backward trace.
    """
    near = find_neighbours(trace, compilation.parameters)
    saved = forward or Sources()
    regions: dict[int, Source] = {}
    modules: dict[str, Module] = {name: module for name, (_, module) in near.before.items()}
    readers: dict[str, dict[Line, None]] = {}
    for position, fusion in enumerate(trace.bound_symbols):
        if not fusion.sym.is_fusion:
            continue
        path, inside = _path(fusion, near, compilation, forward)
        modules.update(dict.fromkeys(result_names(fusion), path))
        module = ".".join(inside) if path or compilation.parameters else None
        regions[position] = Source(module, layer_of(path), _lines_of_region(fusion, compilation.lines, saved.readers))
        if forward is None:
            _note_readers(fusion, compilation.lines, readers)
    return Sources(regions, modules, {name: tuple(lines) for name, lines in readers.items()})


def _path(fusion: Any, near: Neighbours, compilation: Compilation, forward: Sources | None) -> tuple[Module, Module]:
    """Returns two modules of a region: one that determines the layer, and the innermost one around all of it."""
    own = own_module(fusion, compilation.parameters)
    if own:
        return own, own
    arguments = argument_names(fusion)
    before = _sort_modules((near.before.get(name) for name in arguments), latest_first=True)
    after = _sort_modules((near.after.get(name) for name in result_names(fusion)), latest_first=False)
    later, earlier = (after, before) if forward is None else (before, after)
    saved = [forward.modules[name] for name in arguments if name in forward.modules] if forward else []
    around = [*later, *earlier]
    for modules in (around, later, later[:1], earlier, earlier[:1], saved):
        shared = common_module(modules)
        if layer_of(shared) is not None:
            # A region beside a module is outside of it.
            return shared, shared[:-1] if shared in modules else shared
    return common_module(around), common_module(around)


def _sort_modules(nearest: Iterable[Near | None], *, latest_first: bool) -> list[Module]:
    """Returns the modules of distinct operations, ordered by position."""
    return [module for _, module in sorted({near for near in nearest if near is not None}, reverse=latest_first)]


def _lines_of_region(fusion: Any, own: Mapping[str, Line], readers: Mapping[str, tuple[Line, ...]]) -> tuple[Line, ...]:
    found: dict[Line, None] = {}
    for symbol in fusion.subsymbols:
        line = _line_of_result(symbol, own)
        found.update(dict.fromkeys([line] if line else _operand_lines(symbol, own, readers)))
    # The sort is stable, so that both groups stay in the order of the operations.
    return tuple(sorted(found, key=lambda line: line.library))[:MOST_LINES]


def _line_of_result(symbol: Any, own: Mapping[str, Line]) -> Line | None:
    return next((own[name] for name in result_names(symbol) if name in own), None)


def _operand_lines(symbol: Any, own: Mapping[str, Line], readers: Mapping[str, tuple[Line, ...]]) -> Iterator[Line]:
    """Yields the lines of the forward operations that read the same values, or else of those that computed them."""
    for name in argument_names(symbol):
        yield from readers.get(name) or ([own[name]] if name in own else [])


def _note_readers(fusion: Any, own: Mapping[str, Line], readers: dict[str, dict[Line, None]]) -> None:
    for symbol in fusion.subsymbols:
        line = _line_of_result(symbol, own)
        if line is None:
            continue
        for name in argument_names(symbol):
            lines = readers.setdefault(name, {})
            if len(lines) < MOST_LINES:
                lines[line] = None
