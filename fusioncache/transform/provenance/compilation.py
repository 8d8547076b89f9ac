"""Reads what Thunder knows of the compilation that is going on: the model, its parameters, source lines and times."""

from __future__ import annotations

import re
import sysconfig
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from typing import Any

from fusioncache.backends.bound_symbols import result_names
from fusioncache.observe.record.observations import Line
from fusioncache.transform.graph_names import graph_names_of_process
from fusioncache.transform.provenance.graph_lines import find_graph_lines, is_generated

Module = tuple[str, ...]
"""The path of a module, such as ``("transformer", "h", "3")``."""

_DYNAMO_PARAMETER = re.compile(r"l_self_modules_(.+)_parameters_.+_")


@dataclass(frozen=True, slots=True)
class Compilation:
    """A model that Thunder compiles. What cannot be found out is None or empty.

    Attributes:
        model: the class of the module or the name of the function; with ``thunderfx`` which part of it.
        parameters: the module of each parameter, by the parameter's name in traces. One in a list is its own module.
        lines: the line of source that each value of the forward pass comes from, by the value's name in traces.
        fuses: whether any of the executors makes regions of whatever operations there are.
        tracing: seconds from the start of Thunder's tracing to its end.
        fusing: seconds from there to now.
    """

    model: str | None = None
    parameters: Mapping[str, Module] = field(default_factory=dict)
    lines: Mapping[str, Line] = field(default_factory=dict)
    fuses: bool | None = None
    tracing: float | None = None
    fusing: float | None = None


def current_compilation() -> Compilation:
    """Returns the compilation in which this is called, between fusing the forward trace and making it callable."""
    data, stats = _data_and_stats()
    if data is None or stats is None:
        return Compilation()
    started, stopped = stats.last_trace_tracing_start, stats.last_trace_tracing_stop
    timed = 0 < started <= stopped
    return Compilation(
        model=_model_name(data.fn),
        parameters=_parameters((stats.last_prologue_traces or ())[:1]),
        lines=_lines(stats.last_traces or (), find_graph_lines(data.fn, is_library)),
        fuses=any(map(_makes_regions, data.executors_list)),
        tracing=(stopped - started) / 1e9 if timed else None,
        fusing=(time.perf_counter_ns() - stopped) / 1e9 if timed else None,
    )


def current_forward_trace() -> Any | None:
    """Returns the forward trace of the compilation in which this is called, as the last pass left it; None outside."""
    _, stats = _data_and_stats()
    return stats.last_traces[-1] if stats is not None and stats.last_traces else None


def _data_and_stats() -> tuple[Any, Any]:
    # Thunder has a public name for the first of the two only.
    from fusioncache.thunder_adapter.api import _compile_data

    return _compile_data.get()


def _makes_regions(executor: Any) -> bool:
    """Tells whether an executor fuses in general. Thunder has one that fuses only the operations of a loss."""
    from fusioncache.thunder_adapter.api import FusionExecutor

    return isinstance(executor, FusionExecutor) and getattr(executor, "required_ops", None) is None


def _model_name(function: Any) -> str | None:
    import torch

    if (graph := graph_names_of_process().find(function)) is not None:
        return graph
    named = type(function) if isinstance(function, torch.nn.Module) else function
    name = getattr(named, "__name__", None)
    return name if isinstance(name, str) else None


def _parameters(prologues: Sequence[Any]) -> dict[str, Module]:
    from fusioncache.thunder_adapter.api import PrimIDs

    owners: dict[str, Module] = {}
    for symbol in (symbol for prologue in prologues for symbol in prologue.bound_symbols):
        if symbol.sym.id is PrimIDs.UNPACK_PARAMETER:
            owners[symbol.output.name] = _module_of(symbol.args[1])
        elif symbol.sym.id is PrimIDs.UNPACK_GETITEM and (path := module_in_name(symbol.output.name)):
            owners[symbol.output.name] = path
    return owners


def module_in_name(name: str) -> Module:
    """Returns the module of a parameter that TorchDynamo made an argument of a graph; () for any other argument."""
    found = _DYNAMO_PARAMETER.fullmatch(name)
    return tuple(found[1].split("_modules_")) if found else ()


def _module_of(parameter: str) -> Module:
    path = tuple(parameter.split("."))
    return path if path[-1].isdigit() else path[:-1]


def _lines(traces: Sequence[Any], of_graph: Mapping[int, Line]) -> dict[str, Line]:
    """Returns the line of each value. A value that a pass renamed has its line in the trace that the pass made.

    Args:
        traces: of the forward pass, in the order of the passes.
        of_graph: the user's lines for those of a graph's own code.
    """
    lines: dict[str, Line] = {}
    seen: set[int] = set()
    for trace in traces:
        for symbol in trace.bound_symbols:
            if id(symbol) not in seen:
                seen.add(id(symbol))
                for name, line in _lines_in(symbol, None, of_graph):
                    lines.setdefault(name, line)  # a call may return what it was given
    return lines


def _lines_in(symbol: Any, outer: Line | None, of_graph: Mapping[int, Line]) -> Iterator[tuple[str, Line]]:
    """Yields the lines of the values that a bound symbol defines. A symbol in it without a line has the outer one's."""
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
    """Returns whether a file of source belongs to Python or to an installed package, rather than to the user."""
    installed = "/site-packages/" in file or "/dist-packages/" in file
    return installed or file.startswith(("<", *library_folders()))


@cache
def library_folders() -> tuple[str, ...]:
    """Returns the folders of Python's own modules, and those of torch and Thunder, which may be installed anywhere."""
    own = [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")]
    found = [find_spec(name) for name in ("torch", "thunder")]
    own += [folder for spec in found if spec is not None for folder in spec.submodule_search_locations or ()]
    return tuple(folder.rstrip("/") + "/" for folder in own)
