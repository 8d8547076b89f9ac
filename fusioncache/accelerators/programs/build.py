"""From a program as data to one of Thunder's cache entries."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from types import CodeType
from typing import Any

from fusioncache.accelerators.programs.bytecode import CompiledProgram, compile_trace, name_file
from fusioncache.accelerators.programs.cuda_graphs import capture
from fusioncache.accelerators.programs.derived import FUNCTION_OBJECT
from fusioncache.accelerators.programs.references import (
    CudaGraphReference,
    ModuleReference,
    NamedReference,
    Reference,
    SymbolReference,
    TraceText,
)
from fusioncache.accelerators.programs.resolve import Resolver, resolve_module
from fusioncache.accelerators.programs.text import ProgramText
from fusioncache.accelerators.programs.traces import LoadedTrace
from fusioncache.accelerators.steps.prologue import Rewrite, quicken, rewrite
from fusioncache.process.secrets import reveal_texts
from fusioncache.process.source_lines import show_lines

Resolve = Callable[[Reference], Any]
"""Returns the function to call for a template, or what is the job's. It raises a ``ValueError`` where that is not what
it was."""


def build_program(program: ProgramText, compiled: CompiledProgram, function: object, resolve: Resolve) -> Any:
    """Returns a cache entry for Thunder.

    Args:
        program: was read from a store whose writers are trusted: its text is run.
        compiled: what Python made of it.
        function: the module or the function that is compiled.
        resolve: gives the functions for calls of templates, and what is the job's.

    Raises:
        ValueError: if the program does not fit here: something that it names is not there, or another.
    """
    from fusioncache.thunder_adapter.accelerator_api import thunder
    from fusioncache.thunder_adapter.api import TraceTag

    builder = _Builder({code.co_filename: code for code in compiled.codes}, function, resolve, Resolver())
    built = [builder.build(trace) for trace in map(_reveal, program.traces())]
    (prologue, checks), (computation, forward), (epilogue, effects), *others = built
    backward = [trace for _, trace in others]
    if backward:
        forward.tags.add(TraceTag.AUGMENTED_FORWARD)
        backward[0].tags.add(TraceTag.BACKWARD)
    return thunder.CacheEntry(
        _with_stats(quicken(prologue, _find_rewrite(program, compiled)), [effects], backward),
        [checks],
        computation,
        [forward],
        epilogue,
        [effects],
        others[0][0] if others else None,
        backward,
        program.returns_none_for_gradients,
    )


def _reveal(trace: TraceText) -> TraceText:
    """Returns a trace with this process's texts in place of their digests.

    Raises:
        ValueError: if this process has no such text.
    """
    try:
        return replace(trace, source=reveal_texts(trace.source))
    except ValueError as error:
        raise ValueError(f"its {trace.name} {error}") from error


def _find_rewrite(program: ProgramText, compiled: CompiledProgram) -> Rewrite:
    """Returns what writes the prologue anew: what was compiled of digests does not serve one with texts."""
    source = program.prologue.source
    return compiled.rewrite if reveal_texts(source) == source else rewrite


@dataclass(frozen=True, slots=True)
class _Builder:
    """Makes functions of texts.

    Attributes:
        codes: of each text, by the name of the file that it seems to come from.
        function: the module or the function that is compiled.
        resolve: gives the functions for calls of templates, and what is the job's.
        resolver: finds everything else.
    """

    codes: Mapping[str, CodeType]
    function: object
    resolve: Resolve
    resolver: Resolver

    def build(self, trace: TraceText) -> tuple[Callable[..., Any], LoadedTrace]:
        """Returns the function of a trace, whose lines tracebacks show as they do those of Thunder's, and the trace."""
        from fusioncache.thunder_adapter.accelerator_api import thunder

        context = {name: self._resolve(reference) for name, reference in trace.context.items()}
        # Only prologues ask for the function: ``derived.py`` refuses others that do.
        function = self.function if trace.name == "prologue" else None
        globals_ = {**context, "thunder": thunder, FUNCTION_OBJECT: function}
        code = self.codes.get(name_file(trace)) or compile_trace(trace)
        loaded, built = LoadedTrace(trace, context), _execute(trace, code, globals_)
        show_lines(built, code.co_filename, loaded.find_text)
        return built, loaded

    def _resolve(self, reference: Reference) -> Any:
        match reference:
            case ModuleReference():
                return resolve_module(reference)
            case NamedReference():
                return self.resolver.find_value(reference)
            case SymbolReference():
                return self.resolver.find_function(reference)
            case CudaGraphReference(trace, static_inputs):
                return capture(self.build(_reveal(trace))[0], static_inputs)
        return self.resolve(reference)


def _execute(trace: TraceText, code: CodeType, context: dict[str, Any]) -> Callable[..., Any]:
    """Returns the function of a trace."""
    try:
        exec(code, context)
    except ImportError as error:
        raise ValueError(f"{trace.name} imports what is not there: {error}") from error
    # Thunder takes a prologue out of its own globals, which hold the module, so that these are no cycle.
    return context.pop(trace.name)


def _with_stats(prologue: Callable[..., Any], epilogue_traces: list, backward_traces: list) -> Callable[..., Any]:
    """Wraps a prologue as Thunder does, so that what it says of the last call is right.

    For an entry that was there before, Thunder sets all the traces of the last call but these two lists.
    """
    from fusioncache.thunder_adapter.accelerator_api import _compile_data

    @wraps(prologue)
    def run(*args: Any, **kwargs: Any) -> Any:
        _, stats = _compile_data.get()
        stats.last_prologue_execution_start = time.perf_counter_ns()
        try:
            result = prologue(*args, **kwargs)
        finally:
            stats.last_prologue_execution_stop = time.perf_counter_ns()
        stats.last_epilogue_traces, stats.last_backward_traces = epilogue_traces, backward_traces
        return result

    return run
