"""From what Thunder made of a model, one of its cache entries, to a program as data.

What is written is what runs: the source that was compiled, with digests in place of a user's texts, and the globals of
the function that came of it. A ``Resolver`` leads from a reference back to the object that it names. Nothing is called,
and only reviewed packages are imported.
"""

from __future__ import annotations

import inspect
import linecache
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import Enum
from importlib import import_module
from types import BuiltinFunctionType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

import torch

from fusioncache.accelerators.programs.describe import Describer
from fusioncache.accelerators.programs.functions import list_names
from fusioncache.accelerators.programs.options import find_captured
from fusioncache.accelerators.programs.text import (
    CudaGraphReference,
    ModuleReference,
    NamedReference,
    ProgramText,
    Reference,
    SymbolReference,
    TraceText,
    check_source,
    is_reviewed,
)
from fusioncache.ir import Declined, Scope
from fusioncache.process.secrets import hide_texts


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
        from fusioncache.thunder_adapter.api import get_executor

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
        called = self._refer_to_call(value) if isinstance(value, FunctionType) else self._find_reference(value)
        try:
            found = (
                called or _refer_to_module(value) or self._refer_to_symbol(name, value) or self._refer_by_name(value)
            )
        except Declined as error:
            error.require(Scope.VALUE, Scope.AMOUNT)
            raise Declined(
                f"it {_describe_use(name, value)}, which cannot be compared: {error}", Scope.PROGRAM
            ) from error
        if found is None:
            raise Declined(f"it {_describe_use(name, value)}, which another process cannot find again", Scope.PROGRAM)
        return found

    def _refer_to_call(self, function: FunctionType) -> Reference | None:
        captured = find_captured(function)
        if captured is None:
            return self._find_reference(function)
        name, part, static_inputs = captured
        return CudaGraphReference(self.write(_find_function(part, name)), static_inputs)

    def _refer_to_symbol(self, name: str, value: Any) -> SymbolReference | None:
        from fusioncache.thunder_adapter.api import get_all_executors

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
