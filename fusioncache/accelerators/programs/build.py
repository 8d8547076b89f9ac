"""From a program as data to one of Thunder's cache entries.

Python takes 0.2 s to compile the text of a large model. So what it compiled is kept beside the text, for speed alone.
It is used only by the Python that made it and for the very text that it was made of, which a header names; otherwise
the text is compiled. Like the text it is run, so that those are trusted who write the store::

    content = "fusioncache bytecode " format " " magic " " sha256-of-sources " " sha256-of-body LF body

The magic number is Python's, in hexadecimal, and the body what ``marshal`` makes of the code of the traces.
"""

from __future__ import annotations

import hashlib
import logging
import marshal
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial, wraps
from importlib.util import MAGIC_NUMBER
from types import CodeType
from typing import Any, Never

from fusioncache.accelerators.programs.derived import FUNCTION_OBJECT, Resolver, resolve_module
from fusioncache.accelerators.programs.options import capture
from fusioncache.accelerators.programs.text import (
    CudaGraphReference,
    ModuleReference,
    NamedReference,
    ProgramText,
    Reference,
    SymbolReference,
    TraceText,
)
from fusioncache.accelerators.steps.prologue import Rewrite, quicken, rewrite
from fusioncache.process.secrets import reveal_texts
from fusioncache.process.sources import show_lines
from fusioncache.thunder_adapter.api import SigInfo, TraceCtx

logger = logging.getLogger("fusioncache")

CODE_FORMAT = 1


def encode_code(program: ProgramText) -> bytes:
    """Compiles the traces of a program and writes what comes of them.

    Raises:
        ValueError: if one of them is no Python.
    """
    body = marshal.dumps(tuple(map(compile_trace, program.texts())))
    return _write_header(program, body) + body


def decode_code(content: bytes, program: ProgramText) -> tuple[CodeType, ...]:
    """Reads the code of a program's texts, in their order.

    Raises:
        ValueError: if it is not the code of this program, or another Python's, or damaged.
    """
    header, _, body = content.partition(b"\n")
    if header + b"\n" != _write_header(program, body):
        raise ValueError("no code of this program for this Python")
    return marshal.loads(body)


@dataclass(frozen=True, slots=True)
class CompiledProgram:
    """What Python makes of a program.

    Attributes:
        codes: of all its texts, in their order.
        rewrite: writes its prologue anew.
    """

    codes: tuple[CodeType, ...]
    rewrite: Rewrite = rewrite


def compile_program(program: ProgramText, bytecode: bytes | None) -> CompiledProgram:
    """Returns the code of a program's texts as it was written, or compiles them if that does not fit.

    Raises:
        ValueError: if one of them is no Python.
    """
    if bytecode is not None:
        try:
            return CompiledProgram(decode_code(bytecode, program))
        except ValueError:  # another Python's, most likely; the text is what counts
            logger.info("a stored program is compiled again", exc_info=True)
    return CompiledProgram(tuple(map(compile_trace, program.texts())))


def _write_header(program: ProgramText, body: bytes) -> bytes:
    sources = hashlib.sha256()
    for trace in program.texts():
        source = trace.source.encode()
        sources.update(b"%s %d\n%s\n" % (trace.name.encode(), len(source), source))
    fields = CODE_FORMAT, MAGIC_NUMBER.hex(), sources.hexdigest(), hashlib.sha256(body).hexdigest()
    return b"fusioncache bytecode %s\n" % " ".join(map(str, fields)).encode()


def name_file(trace: TraceText) -> str:
    """Returns the name of the file that a trace seems to come from, in tracebacks: equal texts have equal names."""
    return f"thunder.{trace.name}_{hashlib.sha256(trace.source.encode()).hexdigest()[:16]}"


def compile_trace(trace: TraceText) -> CodeType:
    """Compiles one trace, in the same way whatever the options of this Python are.

    Raises:
        ValueError: if it is no Python.
    """
    try:
        return compile(trace.source, name_file(trace), "exec", dont_inherit=True, optimize=0)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise ValueError(f"the text of {trace.name} is no Python: {error}") from error


class LoadedTrace(TraceCtx):
    """A trace that was loaded: the text that runs, and no bound symbols.

    The text, of which there is one for each length, is held compressed.

    Args:
        name: of the function in the text, by which Thunder finds it to make it a function again.
        source: the text.
        context: what the names in it stand for.

    Attributes:
        find_text: returns the text, and holds nothing else.
    """

    def __init__(self, name: str, source: str, context: Mapping[str, Any]):
        super().__init__(None)
        self.find_text = partial(_unpack, zlib.compress(source.encode(), 1))
        self._siginfo, self._context = SigInfo(name), context

    @property
    def bound_symbols(self) -> Never:
        """Never returns.

        Raises:
            AttributeError: always.
        """
        raise AttributeError("a loaded trace has a text and no bound symbols: python() returns it; see programs=False")

    def python(self, *, print_depth: int = 1, include_decorators: bool = True) -> str:
        """Returns the text, whatever is asked for: it is what runs."""
        return self.find_text()

    def python_ctx(self) -> dict[str, Any]:
        """Returns what the names in the text stand for."""
        return dict(self._context)


def _unpack(content: bytes) -> str:
    return zlib.decompress(content).decode()


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
        loaded, built = LoadedTrace(trace.name, trace.source, context), _execute(trace, code, globals_)
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
