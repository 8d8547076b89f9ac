"""From what Thunder made of a model, one of its cache entries, to a program as data, and back.

What is written is what runs: the source that was compiled, with digests in place of a user's texts, and the globals of
the function that came of it. A ``Resolver`` leads from a reference back to the object that it names. Nothing is called,
and only reviewed packages are imported.

Python takes 0.2 s to compile the text of a large model. So what it compiled is kept beside the text, for speed alone.
It is used only by the Python that made it and for the very text that it was made of, which a header names; otherwise
the text is compiled. Like the text it is run, so that those are trusted who write the store::

    content = "fusioncache bytecode " format " " magic " " sha256-of-sources " " sha256-of-body LF body

The magic number is Python's, in hexadecimal, and the body what ``marshal`` makes of the code of the traces.
"""

from __future__ import annotations

import hashlib
import inspect
import linecache
import logging
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
from fusioncache.thunder_adapter.api import SigInfo, TraceCtx, TraceTag, get_all_executors, get_executor


def resolve_module(reference: ModuleReference) -> ModuleType:
    """Returns the module of this name, which is imported if it is one of a reviewed package.

    Raises:
        ValueError: if it is not there.
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
    """Returns the function, class, member of an enumeration or constant of this name.

    Of packages that are not reviewed only classes and members of enumerations are returned, and those only if the
    package was imported: a trace checks for them and makes the results that a model returns.

    Raises:
        ValueError: if it is not there, or the name leads through or to another module.
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
    """True if a value is one that torch has one object for, in a module and under its name."""
    return isinstance(value, (torch.dtype, torch.layout, torch.memory_format))


class Resolver:
    """Finds what references name, and sees to it that it is what it was. Made anew for each program."""

    def __init__(self) -> None:
        self._describer = Describer()

    def find_value(self, reference: NamedReference) -> Any:
        """Returns what ``resolve_name`` does.

        Raises:
            ValueError: if it is not there, or another.
        """
        value = resolve_name(reference)
        self._compare(value, reference.text, f"{reference.module}.{reference.name}")
        return value

    def find_function(self, reference: SymbolReference) -> Any:
        """Returns the function with which an executor implements an operation.

        Raises:
            ValueError: if there is no such executor, or it has no such operation, or another one.
        """
        executor = get_executor(reference.executor)
        function = executor and find_implementation(executor, reference.symbol)
        if function is None:
            raise ValueError(f"executor {reference.executor} has no function for {reference.symbol}")
        self._compare(function, reference.text, f"{reference.symbol} of executor {reference.executor}")
        return function

    def describe(self, value: Any) -> str:
        """Returns a text that another value of this name would not have.

        It is empty for classes and constants of reviewed packages: programs depend on the versions of these.

        Raises:
            Declined: if the value has none.
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
    """Returns the function with which an executor implements an operation; None if there is none.

    Thunder keeps it nowhere but in the function that completes bound symbols of the operation, so one is completed.
    """
    symbol = executor.opmap.get(name)
    if symbol is None or symbol._bind_postprocess is None:
        return None
    bound = SimpleNamespace(_call_ctx=None)
    try:
        symbol._bind_postprocess(bound)
    except Exception:  # the operation's own code, which expects more of a bound symbol
        return None
    return (bound._call_ctx or {}).get(name)


FindReference = Callable[[Any], Reference | None]
"""Takes what a trace calls or holds, and returns the reference to it where only the caller knows what it stands for: a
template, say. None if it is nothing of that kind."""

FUNCTION_OBJECT = "__function_obj"
"""The name by which a prologue finds the module or the function that was compiled."""

_OF_EACH = frozenset({FUNCTION_OBJECT, "__builtins__", "__global_dicts", "no_autocast", "thunder"})


def write_program(entry: Any, function: object, find_reference: FindReference) -> ProgramText:
    """Returns a program as data.

    Args:
        entry: Thunder's cache entry.
        function: the module or the function that was compiled.
        find_reference: knows the calls of templates, and what is the job's.

    Raises:
        Declined: if another process could not run the program. The reason names what stands in the way.
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
    """Returns the function that was compiled from a trace, out of what was wrapped around it.

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
    """Yields what a function holds of the functions around it."""
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # it is empty
            yield cell.cell_contents


def _imported_names(source: str) -> set[str]:
    """Returns the names that a source imports."""
    heads = source.partition("\ndef ")[0].split("\n")
    imports = [line.split() for line in heads if line.startswith(("import ", "from "))]
    return {words[-1] if "as" in words or words[0] == "from" else words[1].partition(".")[0] for words in imports}


class _TraceWriter:
    """Writes the texts of one program.

    Args:
        find_reference: knows the calls of templates, and what is the job's.
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
        # Lines that linecache got from a loader end with a line break, and Thunder's own do not.
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
        # A name of an attribute can be that of a global as well. Then there is a reference too many, and no harm.
        names = sorted(function.__globals__.keys() & list_names(function.__code__) - imported - _OF_EACH - {name})
        context = {used: self._refer(used, function.__globals__[used]) for used in names}
        return TraceText(name, source, context)

    def _refer(self, name: str, value: Any) -> Reference:
        """Returns a reference that leads back to a value of a trace's context.

        Raises:
            Declined: if no reference leads back to the value.
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
    """Returns the module and the qualified name under which a value should be found."""
    if isinstance(value, (type, FunctionType, BuiltinFunctionType)) and value.__module__:
        return value.__module__, value.__qualname__
    if isinstance(value, Enum):
        return type(value).__module__, f"{type(value).__qualname__}.{value.name}"
    if is_constant_of_torch(value):
        return "torch", str(value).removeprefix("torch.")
    return None


logger = logging.getLogger("fusioncache")

CODE_FORMAT = 1


def encode_code(program: ProgramText) -> bytes:
    """Compiles the traces of a program and writes what comes of them.

    Raises:
        ValueError: if one of them is no Python.
    """
    body = marshal.dumps(tuple(map(compile_trace, program.traces())))
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
    return CompiledProgram(tuple(map(compile_trace, program.traces())))


def _write_header(program: ProgramText, body: bytes) -> bytes:
    sources = hashlib.sha256()
    for trace in program.traces():
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

    builder = _Builder({code.co_filename: code for code in compiled.codes}, function, resolve, Resolver())
    traces = [*map(_reveal, program.traces())]
    built = [builder.build(trace) for trace in traces]
    # What was compiled of digests does not serve a prologue with texts.
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
        ValueError: if this process has no such text.
    """
    try:
        return replace(trace, source=reveal_texts(trace.source))
    except ValueError as error:
        raise ValueError(f"its {trace.name} {error}") from error


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
        # Only prologues ask for the function: ``write_program`` refuses others that do.
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
