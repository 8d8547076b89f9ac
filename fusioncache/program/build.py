"""From a program as data to one of Thunder's cache entries."""

from __future__ import annotations

import hashlib
import linecache
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

from fusioncache.program.references import (
    ModuleReference,
    NamedReference,
    Reference,
    SymbolReference,
    TemplateReference,
)
from fusioncache.program.resolve import module_named, symbol_named, value_named
from fusioncache.program.text import ProgramText, TraceText
from fusioncache.program.traces import LoadedTrace
from fusioncache.program.write import FUNCTION_OBJECT

ResolveTemplate = Callable[[str, TemplateReference], Callable[..., Any]]
"""Takes the name of a call in a trace and the template that it stands for, and returns the function to call.

It raises a ``ValueError`` where the template is not what it was."""


def build_program(program: ProgramText, function: object, resolve_template: ResolveTemplate) -> Any:
    """Returns a cache entry for Thunder.

    Args:
        program: was read from a store whose writers are trusted: its text is run.
        function: the module or the function that is compiled.
        resolve_template: gives the functions for calls of templates.

    Raises:
        ValueError: if the program does not fit here: something that it names is not there, or another.
    """
    import thunder
    from thunder.core.trace import TraceTag

    def build(trace: TraceText, *tags: TraceTag) -> tuple[Callable[..., Any], LoadedTrace]:
        context = {name: _resolve(name, reference, resolve_template) for name, reference in trace.context.items()}
        return _compile(trace, {**context, "thunder": thunder}), LoadedTrace(trace, context, tags)

    prologue, prologue_trace = build(program.prologue)
    prologue.__globals__[FUNCTION_OBJECT] = function
    tags = [] if program.backward is None else [TraceTag.AUGMENTED_FORWARD]
    computation, computation_trace = build(program.computation, *tags)
    epilogue, epilogue_trace = build(program.epilogue)
    backward, backward_traces = None, []
    if program.backward is not None:
        backward, backward_trace = build(program.backward, TraceTag.BACKWARD)
        backward_traces.append(backward_trace)
    return thunder.CacheEntry(
        _with_stats(prologue, [epilogue_trace], backward_traces),
        [prologue_trace],
        computation,
        [computation_trace],
        epilogue,
        [epilogue_trace],
        backward,
        backward_traces,
        program.returns_none_for_gradients,
    )


def _resolve(name: str, reference: Reference, resolve_template: ResolveTemplate) -> Any:
    match reference:
        case ModuleReference():
            return module_named(reference)
        case NamedReference():
            return value_named(reference)
        case SymbolReference():
            return symbol_named(reference)
    return resolve_template(name, reference)


def _compile(trace: TraceText, context: dict[str, Any]) -> Callable[..., Any]:
    """Returns the function of a trace. Tracebacks show its lines, as they do for traces that Thunder makes."""
    digest = hashlib.sha256(trace.source.encode()).hexdigest()[:16]
    filename = f"thunder.{trace.name}_{digest}"
    try:
        code = compile(trace.source, filename, mode="exec")
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"the text of {trace.name} is no Python: {error}") from error
    # Without a time the lines stay, whatever the file system says of such a file.
    linecache.cache[filename] = len(trace.source), None, trace.source.splitlines(keepends=True), filename
    try:
        exec(code, context)
    except ImportError as error:
        raise ValueError(f"{trace.name} imports what is not there: {error}") from error
    function = context.pop(trace.name)
    return function


def _with_stats(prologue: Callable[..., Any], epilogue_traces: list, backward_traces: list) -> Callable[..., Any]:
    """Wraps a prologue as Thunder does, so that what it says of the last call is right.

    For an entry that was there before, Thunder sets all the traces of the last call but these two lists.
    """
    from thunder.core.compile_data import _compile_data

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
