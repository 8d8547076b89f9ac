"""Serializes a Thunder cache entry as a program, and builds a cache entry from a stored program.

A program contains the code that runs: the source of each compiled function, with digests in place of the user's texts,
and references to the function's globals. A ``Resolver`` finds the object that a reference names. It calls none of these
objects, and imports modules of reviewed packages only.

Python takes 0.2 s to compile the source of a large model. So the bytecode is stored beside the source, for speed alone.
It is used only by the Python version that compiled it and only for the same source, both of which a header identifies.
Otherwise the source is compiled. Bytecode is executed like the source, so processes that write to the store are
trusted::

    content = "fusioncache bytecode " format " " magic " " sha256-of-sources " " sha256-of-body LF body

The magic number is that of Python's bytecode, in hexadecimal. The body is the ``marshal`` encoding of the traces' code.
"""

from __future__ import annotations

import hashlib
import inspect
import linecache
import marshal
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial, wraps
from importlib import import_module
from importlib.util import MAGIC_NUMBER
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any, Never

import torch

from fusioncache.accelerators.programs.describe import Describer
from fusioncache.accelerators.programs.functions import list_names
from fusioncache.accelerators.programs.text import (
    ModuleReference,
    NamedReference,
    ProgramText,
    Reference,
    SymbolReference,
    TraceText,
    check_source,
    is_reviewed,
)
from fusioncache.accelerators.steps.prologue import Rewrite, quicken, rewrite
from fusioncache.ir import Declined, Scope
from fusioncache.process.secrets import hide_texts, reveal_texts
from fusioncache.process.sources import show_lines
from fusioncache.process.warning import logger
from fusioncache.thunder_adapter.accelerator_api import thunder
from fusioncache.thunder_adapter.api import SigInfo, TraceCtx, TraceTag, _compile_data, get_all_executors, get_executor


def resolve_module(reference: ModuleReference) -> ModuleType:
    """Returns the module of this name, importing it if it belongs to a reviewed package.

    Raises:
        ValueError: if it cannot be imported, or is neither imported nor reviewed.
    """
    module = sys.modules.get(reference.module)
    if module is None and is_reviewed(reference.module):
        try:
            module = import_module(reference.module)
        except ImportError as error:
            raise ValueError(f"module {reference.module} cannot be imported: {error}") from error
    if module is None:
        raise ValueError(f"module {reference.module} is not there")
    return module


def resolve_name(reference: NamedReference) -> Any:
    """Returns the function, class, enumeration member or constant of this name.

    Of packages that are not reviewed, only classes and enumeration members are returned, and only if the package is
    already imported. Traces check for these and construct a model's results with them.

    Raises:
        ValueError: if it is missing or not allowed, or the name leads through or to another module.
    """
    value: Any = resolve_module(ModuleReference(reference.module))
    for name in reference.name.split("."):
        value = getattr(value, name, None)
        if value is None or isinstance(value, ModuleType):
            raise ValueError(f"{reference.module} has no {reference.name}")
    if not isinstance(value, (type, Enum)) and not _is_function_or_constant(value, reference):
        raise ValueError(f"{reference.module}.{reference.name} is nothing that stored programs may use")
    return value


def _is_function_or_constant(value: Any, reference: NamedReference) -> bool:
    if not is_reviewed(reference.module):
        return False
    if isinstance(value, (FunctionType, BuiltinFunctionType)):
        return value.__module__ == reference.module and value.__qualname__ == reference.name
    return is_constant_of_torch(value)


def is_constant_of_torch(value: Any) -> bool:
    """True if a value is a dtype, a layout or a memory format. Torch has one object for each, found under its name."""
    return isinstance(value, (torch.dtype, torch.layout, torch.memory_format))


class Resolver:
    """Resolves references to objects, and checks that each object is unchanged. Each program needs a new one."""

    def __init__(self) -> None:
        self._describer = Describer()

    def find_value(self, reference: NamedReference) -> Any:
        """Returns the object that ``resolve_name`` finds.

        Raises:
            ValueError: if it is missing or not allowed, or its description differs from the stored one.
        """
        value = resolve_name(reference)
        self._compare(value, reference.text, f"{reference.module}.{reference.name}")
        return value

    def find_function(self, reference: SymbolReference) -> Any:
        """Returns the function with which an executor implements an operation.

        Raises:
            ValueError: if the executor does not exist, does not implement the operation, or uses another function for
                it.
        """
        executor = get_executor(reference.executor)
        function = executor and find_implementation(executor, reference.symbol)
        if function is None:
            raise ValueError(f"executor {reference.executor} has no function for {reference.symbol}")
        self._compare(function, reference.text, f"{reference.symbol} of executor {reference.executor}")
        return function

    def describe(self, value: Any) -> str:
        """Returns a text that differs for any other value of the same name.

        It is empty for classes and constants of reviewed packages: the versions of these packages are in the program's
        key.

        Raises:
            Declined: if the value cannot be described.
        """
        is_versioned = is_constant_of_torch(value) or (isinstance(value, type) and is_reviewed(value.__module__))
        return "" if is_versioned else self._describer.describe(value)

    def _compare(self, value: Any, text: str, name: str) -> None:
        try:
            equal = self.describe(value) == text
        except Declined as error:
            error.require(Scope.VALUE, Scope.AMOUNT)
            raise ValueError(f"{name} cannot be compared: {error}") from error
        if not equal:
            raise ValueError(f"{name} is another one than when the program was made")


def find_implementation(executor: Any, name: str) -> Any:
    """Returns the function with which an executor implements an operation, or None.

    Thunder stores it only in the closure of the operation's ``_bind_postprocess``, which is called on a dummy symbol
    here.
    """
    symbol = executor.opmap.get(name)
    if symbol is None or symbol._bind_postprocess is None:
        return None
    bound = SimpleNamespace(_call_ctx=None)
    try:
        symbol._bind_postprocess(bound)
    except Exception:  # an operation's own hook, which may need attributes that the dummy lacks
        return None
    return (bound._call_ctx or {}).get(name)


FindReference = Callable[[Any], Reference | None]
"""Returns the reference to a value that a trace calls or holds, if only the caller can identify the value, such as the
call of a template; else None."""

FUNCTION_OBJECT = "__function_obj"
"""The global name under which a prologue finds the compiled module or function."""

_SHARED = frozenset({FUNCTION_OBJECT, "__builtins__", "__global_dicts", "no_autocast", "thunder"})


def write_program(entry: Any, function: object, find_reference: FindReference) -> ProgramText:
    """Returns the program of a Thunder cache entry as data.

    Args:
        entry: Thunder's cache entry.
        function: the module or the function that was compiled.
        find_reference: returns references to templates and to parts of the job.

    Raises:
        Declined: if another process could not run the program. The reason names the obstacle.
    """
    prologue = _find_function(entry.prologue_fn, "prologue")
    if prologue.__globals__.get(FUNCTION_OBJECT) is not function:
        raise Declined("its prologue checks another function than the one that was compiled", Scope.PROGRAM)
    writer = _TraceWriter(find_reference)
    return ProgramText(
        writer.write(prologue, is_prologue=True),
        writer.write(_find_function(entry.computation_fn, "computation")),
        entry.backward_fn and writer.write(_find_function(entry.backward_fn, "backward_fn")),
        writer.write(_find_function(entry.epilogue_fn, "epilogue")),
        bool(entry.return_none_instead_of_grads),
    )


def _find_function(function: Any, name: str) -> FunctionType:
    """Returns the function that was compiled from a trace, searching the wrappers and closure cells around it.

    Raises:
        Declined: if no function inside was compiled from a trace.
    """
    waiting, seen = [function], set()
    while waiting:
        function = inspect.unwrap(waiting.pop())
        if not isinstance(function, FunctionType) or id(function) in seen:
            continue
        code = function.__code__
        if code.co_name == name and code.co_filename.startswith("thunder.") and linecache.getlines(code.co_filename):
            return function
        seen.add(id(function))
        waiting += _values_in(function)
    raise Declined(f"its {name} is no function that Thunder compiled", Scope.PROGRAM)


def _values_in(function: FunctionType) -> Iterator[Any]:
    """Yields the contents of a function's closure cells."""
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # the cell is empty
            yield cell.cell_contents


def _imported_names(source: str) -> set[str]:
    """Returns the names that the imports of a source bind."""
    heads = source.partition("\ndef ")[0].split("\n")
    imports = [line.split() for line in heads if line.startswith(("import ", "from "))]
    return {words[-1] if "as" in words or words[0] == "from" else words[1].partition(".")[0] for words in imports}


class _TraceWriter:
    """Writes the traces of one program as text.

    Args:
        find_reference: returns references to templates and to parts of the job.
    """

    def __init__(self, find_reference: FindReference):
        self._find_reference = find_reference
        self._resolver = Resolver()

    def write(self, function: FunctionType, *, is_prologue: bool = False) -> TraceText:
        """Returns the text of a function that Thunder compiled.

        Raises:
            Declined: if another process could not run it.
        """
        name = function.__code__.co_name
        # Lines that linecache got from a loader end with a line break; Thunder's do not.
        source = "".join(linecache.getlines(function.__code__.co_filename)).removesuffix("\n")
        if "__global_dicts" in source or (FUNCTION_OBJECT in source and not is_prologue):
            raise Declined(f"its {name} takes values from where another process cannot", Scope.PROGRAM)
        if function.__defaults__ or function.__kwdefaults__ or function.__closure__:
            raise Declined(f"its {name} has values of its own", Scope.PROGRAM)
        try:
            source = hide_texts(source)
            check_source(name, source)
        except ValueError as error:
            raise Declined(f"its {name} {error}", Scope.PROGRAM) from error
        imported = _imported_names(source)
        # An attribute may have the name of a global. That adds a superfluous reference, which is harmless.
        names = sorted(function.__globals__.keys() & list_names(function.__code__) - imported - _SHARED - {name})
        context = {used: self._refer(used, function.__globals__[used]) for used in names}
        return TraceText(name, source, context)

    def _refer(self, name: str, value: Any) -> Reference:
        """Returns a reference that resolves to a value in a trace's context.

        Raises:
            Declined: if no reference resolves to the value.
        """
        try:
            found = (
                self._find_reference(value)
                or _refer_to_module(value)
                or self._refer_to_symbol(name, value)
                or self._refer_by_name(value)
            )
        except Declined as error:
            error.require(Scope.VALUE, Scope.AMOUNT)
            raise Declined(
                f"it {_describe_use(name, value)}, which cannot be compared: {error}", Scope.PROGRAM
            ) from error
        if found is None:
            raise Declined(f"it {_describe_use(name, value)}, which another process cannot find again", Scope.PROGRAM)
        return found

    def _refer_to_symbol(self, name: str, value: Any) -> SymbolReference | None:
        for executor in get_all_executors():
            if isinstance(executor.name, str) and find_implementation(executor, name) is value:
                return SymbolReference(executor.name, name, self._resolver.describe(value))
        return None

    def _refer_by_name(self, value: Any) -> NamedReference | None:
        where = _locate(value)
        if where is None:
            return None
        try:
            found = resolve_name(NamedReference(*where)) is value
        except ValueError:
            return None
        return NamedReference(*where, self._resolver.describe(value)) if found else None


def _refer_to_module(value: Any) -> ModuleReference | None:
    found = isinstance(value, ModuleType) and is_reviewed(value.__name__) and sys.modules.get(value.__name__) is value
    return ModuleReference(value.__name__) if found else None


def _describe_use(name: str, value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return "holds a tensor as a constant"
    if callable(value) and not isinstance(value, type):
        return f"calls {name.rstrip('0123456789_')}"
    return f"holds a value of type {(value if isinstance(value, type) else type(value)).__qualname__}"


def _locate(value: Any) -> tuple[str, str] | None:
    """Returns the module and the qualified name under which a value should be found; None if it has none."""
    if isinstance(value, (type, FunctionType, BuiltinFunctionType)) and value.__module__:
        return value.__module__, value.__qualname__
    if isinstance(value, Enum):
        return type(value).__module__, f"{type(value).__qualname__}.{value.name}"
    if is_constant_of_torch(value):
        return "torch", str(value).removeprefix("torch.")
    return None


CODE_FORMAT = 1


def encode_code(program: ProgramText) -> bytes:
    """Compiles the traces of a program and returns their bytecode with its header.

    Raises:
        ValueError: if a trace is not valid Python.
    """
    body = marshal.dumps(tuple(map(compile_trace, program.traces())))
    return _write_header(program, body) + body


def decode_code(content: bytes, program: ProgramText) -> tuple[CodeType, ...]:
    """Returns the code objects of a program's traces, in the order of the traces.

    Raises:
        ValueError: if the content belongs to another program or another Python version, or is damaged.
    """
    header, _, body = content.partition(b"\n")
    if header + b"\n" != _write_header(program, body):
        raise ValueError("no code of this program for this Python")
    return marshal.loads(body)


@dataclass(frozen=True, slots=True)
class CompiledProgram:
    """The code of a program.

    Attributes:
        codes: of all its traces, in their order.
        rewrite: returns a faster function in place of its prologue.
    """

    codes: tuple[CodeType, ...]
    rewrite: Rewrite = rewrite


def compile_program(program: ProgramText, bytecode: bytes | None) -> CompiledProgram:
    """Returns the code of a program's traces, from the bytecode if that fits, else by compiling the source.

    Raises:
        ValueError: if a trace is not valid Python.
    """
    if bytecode is not None:
        try:
            return CompiledProgram(decode_code(bytecode, program))
        except ValueError:  # most likely of another Python version; the source decides
            logger.info("a stored program is compiled again", exc_info=True)
    return CompiledProgram(tuple(map(compile_trace, program.traces())))


def _write_header(program: ProgramText, body: bytes) -> bytes:
    sources = hashlib.sha256()
    for trace in program.traces():
        source = trace.source.encode()
        sources.update(b"%s %d\n%s\n" % (trace.name.encode(), len(source), source))
    fields = CODE_FORMAT, MAGIC_NUMBER.hex(), sources.hexdigest(), hashlib.sha256(body).hexdigest()
    return b"fusioncache bytecode %s\n" % " ".join(map(str, fields)).encode()


def name_file(trace: TraceText) -> str:
    """Returns the file name that tracebacks show for a trace. Equal sources have equal names."""
    return f"thunder.{trace.name}_{hashlib.sha256(trace.source.encode()).hexdigest()[:16]}"


def compile_trace(trace: TraceText) -> CodeType:
    """Returns the code object of a trace, compiled in the same way under all options of Python, such as ``-O``.

    Raises:
        ValueError: if it is not valid Python.
    """
    try:
        return compile(trace.source, name_file(trace), "exec", dont_inherit=True, optimize=0)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise ValueError(f"the text of {trace.name} is no Python: {error}") from error


class LoadedTrace(TraceCtx):
    """A loaded trace: the source that runs, without bound symbols.

    The source is held compressed, because each length has a source of its own.

    Args:
        name: of the function in the source, under which Thunder finds it when it executes the source.
        source: Python.
        context: the values of the global names in the source.

    Attributes:
        find_text: returns the source, and references nothing else.
    """

    def __init__(self, name: str, source: str, context: Mapping[str, Any]):
        super().__init__(None)
        self.find_text = partial(_unpack, zlib.compress(source.encode(), 1))
        self._siginfo, self._context = SigInfo(name), context

    @property
    def bound_symbols(self) -> Never:
        """Raises an ``AttributeError``, as a loaded trace has no bound symbols.

        Raises:
            AttributeError: always.
        """
        raise AttributeError("a loaded trace has a text and no bound symbols: python() returns it; see programs=False")

    def python(self, *, print_depth: int = 1, include_decorators: bool = True) -> str:
        """Returns the source that runs, regardless of the options."""
        return self.find_text()

    def python_ctx(self) -> dict[str, Any]:
        """Returns the values of the global names in the source."""
        return dict(self._context)


def _unpack(content: bytes) -> str:
    return zlib.decompress(content).decode()


Resolve = Callable[[Reference], Any]
"""Returns the function that calls a template, or the part of the job that is referenced. Raises a ``ValueError`` if
either differs from the stored one."""


def build_program(program: ProgramText, compiled: CompiledProgram, function: object, resolve: Resolve) -> Any:
    """Returns a Thunder cache entry for a program.

    Args:
        program: read from a store whose writers are trusted, because its source is executed.
        compiled: its code.
        function: the module or the function that is compiled.
        resolve: returns the functions that call templates, and the parts of the job.

    Raises:
        ValueError: if the program does not fit this process: something that it names is missing or differs.
    """
    resolver, codes = Resolver(), {code.co_filename: code for code in compiled.codes}
    resolvers: Mapping[type, Callable[[Any], Any]] = {
        ModuleReference: resolve_module,
        NamedReference: resolver.find_value,
        SymbolReference: resolver.find_function,
    }
    traces = [*map(_reveal, program.traces())]
    built = []
    for trace in traces:
        context = {name: resolvers.get(type(each), resolve)(each) for name, each in trace.context.items()}
        built.append(_build_trace(trace, codes.get(name_file(trace)) or compile_trace(trace), context, function))
    # A rewrite of the source with digests does not fit a prologue with texts.
    rewriting = compiled.rewrite if traces[0].source == program.prologue.source else rewrite
    (prologue, checks), (computation, forward), (epilogue, effects), *others = built
    backward = [trace for _, trace in others]
    if backward:
        forward.tags.add(TraceTag.AUGMENTED_FORWARD)
        backward[0].tags.add(TraceTag.BACKWARD)
    return thunder.CacheEntry(
        _with_stats(quicken(prologue, rewriting), [effects], backward),
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
        ValueError: if this process has no text with one of the digests.
    """
    try:
        return replace(trace, source=reveal_texts(trace.source))
    except ValueError as error:
        raise ValueError(f"its {trace.name} {error}") from error


def _build_trace(
    trace: TraceText, code: CodeType, context: Mapping[str, Any], function: object
) -> tuple[Callable[..., Any], LoadedTrace]:
    """Returns the function of a trace and the loaded trace. Tracebacks show the function's lines, as in Thunder.

    Args:
        trace: the trace.
        code: of its source.
        context: the values of the global names in it.
        function: the module or the function that is compiled.
    """
    # Only prologues use the function: ``write_program`` refuses other traces that do.
    own = function if trace.name == "prologue" else None
    names = {**context, "thunder": thunder, FUNCTION_OBJECT: own}
    try:
        exec(code, names)
    except ImportError as error:
        raise ValueError(f"{trace.name} imports what is not there: {error}") from error
    # As in Thunder, the function is removed from its globals, which hold the module: this avoids a reference cycle.
    built, loaded = names.pop(trace.name), LoadedTrace(trace.name, trace.source, context)
    show_lines(built, code.co_filename, loaded.find_text)
    return built, loaded


def _with_stats(prologue: Callable[..., Any], epilogue_traces: list, backward_traces: list) -> Callable[..., Any]:
    """Returns a prologue that updates Thunder's statistics of the last call, as Thunder's wrapped prologues do.

    When Thunder reuses a cache entry, it sets all traces of the last call except for these two lists.
    """

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
