"""Functions: what they do, what they bring along, and by which name Python's own ones go.

A function is its code, its defaults, the contents of its closure cells and its attributes. Its globals are not part of
it: which of them it looks up, and what they are, is noted when it runs. Nor are file names and lines, so that a moved
directory or a new comment changes nothing, nor annotations, which do nothing in a call.
"""

from __future__ import annotations

import builtins
import functools
import gc
import hashlib
import types
from typing import Any

from fusioncache.accelerators.programs.containers import write_fields
from fusioncache.accelerators.programs.introspection import by_identity
from fusioncache.accelerators.programs.literals import LITERALS, is_of_module, write_class_name, write_name
from fusioncache.accelerators.programs.lookup import find_module_name
from fusioncache.accelerators.programs.memory import Memory
from fusioncache.accelerators.programs.writer import Handler, Writer
from fusioncache.ir.errors import Declined, Scope


def digest_code(memory: Memory, code: types.CodeType) -> str:
    """Returns the hash of a code object and all that are nested in it."""
    known = memory.code_digests.get(id(code))
    if known is not None:
        return known[1]
    numbers = (code.co_flags, code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
    names = (code.co_name, code.co_qualname, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    steps, handlers = code.co_code, code.co_exceptiontable
    lines = [repr((numbers, names, len(steps), len(handlers)))]
    lines += (_write_constant(memory, constant) for constant in code.co_consts)
    text = "\n".join(lines).encode("utf-8", "surrogatepass")
    result = hashlib.sha256(b"".join((steps, handlers, text))).hexdigest()[:32]
    memory.code_digests[id(code)] = code, result
    return result


def _write_constant(memory: Memory, constant: Any) -> str:
    if type(constant) in (str, bytes):
        return repr(constant)  # nothing of it is left in the hash
    if isinstance(constant, types.CodeType):
        return f"code {digest_code(memory, constant)}"
    if type(constant) is tuple:
        return f"({', '.join(_write_constant(memory, item) for item in constant)})"
    if type(constant) is frozenset:
        return f"{{{', '.join(sorted(_write_constant(memory, item) for item in constant))}}}"
    literal = LITERALS.get(id(type(constant)))
    if literal is None:
        raise Declined(f"a constant of type {type(constant).__qualname__} in code has no value to compare", Scope.VALUE)
    return literal(constant)


def _cover(writer: Writer, code: types.CodeType) -> None:
    writer.note(writer.memory.codes, id(code), code)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            _cover(writer, constant)


def write_code(writer: Writer, code: types.CodeType) -> None:
    """Writes a code object."""
    writer.parts.append(f"code {write_name(code.co_qualname)} {digest_code(writer.memory, code)}")
    _cover(writer, code)


def write_function(writer: Writer, function: types.FunctionType) -> None:
    """Writes a function of Python's."""
    if not writer.enter(function):
        return
    code = function.__code__
    name = f"{write_name(function.__module__)}.{write_name(function.__qualname__)}"
    writer.parts.append(f"<function {name} {digest_code(writer.memory, code)}")
    if function.__name__ != code.co_name:
        writer.parts.append(f" named {write_name(function.__name__)}")
    if function.__globals__.get("__name__") != function.__module__:
        writer.parts.append(f" in {write_name(function.__globals__.get('__name__'))}")
    if function.__defaults__:
        writer.parts.append(" defaults ")
        names = code.co_varnames[: code.co_argcount]
        write_fields(writer, names[len(names) - len(function.__defaults__) :], function.__defaults__)
    if function.__kwdefaults__:
        writer.parts.append(" keyword defaults ")
        writer.write(function.__kwdefaults__)
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        writer.parts.append(" ")
        writer.write_named(name, cell)
    if function.__dict__:
        writer.parts.append(" attributes ")
        writer.write(function.__dict__)
    _write_loose_globals(writer, function)
    writer.parts.append(">")
    _cover(writer, code)


def _write_loose_globals(writer: Writer, function: types.FunctionType) -> None:
    """Writes the globals that a function names, if these are not a module's, so that nobody could find them again."""
    namespace, own = function.__globals__, getattr(function, "__builtins__", {})
    loose = [] if find_module_name(namespace) is not None else [("globals", namespace)]
    if own is not vars(builtins):
        loose.append(("builtins", own))
    names = sorted(list_names(function.__code__)) if loose else []
    for kind, table in loose:
        found = [(name, table[name]) for name in names if name in table]
        writer.parts.append(f" {kind} {len(found)}")
        for name, value in found:
            writer.parts.append(f" {write_name(name)} ")
            writer.write_named(name, value)
        for name in names:
            writer.note(writer.memory.loose_globals, (id(table), name), table)


def list_names(code: types.CodeType) -> set[str]:
    """Returns the names of globals and attributes in code and all that is nested in it."""
    nested = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return {*code.co_names}.union(*map(list_names, nested))


def write_cell(writer: Writer, cell: types.CellType) -> None:
    """Writes a closure cell: functions that share one are told from those with a cell each."""
    if not writer.enter(cell):
        return
    writer.parts.append("cell ")
    try:
        content = cell.cell_contents
    except ValueError:
        writer.parts.append("empty")
    else:
        writer.write(content)


def _write_method(writer: Writer, method: types.MethodType) -> None:
    writer.parts.append("<method ")
    writer.write(method.__func__)
    writer.parts.append(" of ")
    writer.write(method.__self__)
    writer.parts.append(">")


def _write_builtin(writer: Writer, function: types.BuiltinFunctionType) -> None:
    """Writes a function written in C by its name, and the object that it is a method of."""
    owner = function.__self__
    writer.parts.append(f"<builtin {write_name(function.__module__)}.{write_name(function.__qualname__)}")
    if owner is not None and type(owner) is not types.ModuleType and not _is_of_pybind(owner):
        writer.parts.append(" of ")
        writer.write(owner)
    writer.parts.append(">")


def _is_of_pybind(owner: object) -> bool:
    """Returns whether this is what pybind11 keeps behind each of its functions, which goes by its name alone."""
    return write_class_name(type(owner)) == "builtins.PyCapsule" or is_of_module(type(owner), "pybind11_builtins")


def _write_member(writer: Writer, member: Any) -> None:
    """Writes what a class written in C has: a method or a field, by its name."""
    writer.parts.append(f"<{type(member).__name__} {write_name(member.__name__)} of ")
    writer.write_class(member.__objclass__)
    writer.parts.append(">")


def _write_method_wrapper(writer: Writer, wrapper: types.MethodWrapperType) -> None:
    writer.parts.append(f"<method-wrapper {write_name(wrapper.__name__)} of ")
    writer.write(wrapper.__self__)
    writer.parts.append(">")


def _write_property(writer: Writer, value: property) -> None:
    if writer.enter(value):
        writer.parts.append("<property ")
        writer.write((value.fget, value.fset, value.fdel))
        writer.parts.append(">")


def _write_cached(writer: Writer, value: Any) -> None:
    """Writes a function behind a cache, whose contents say nothing that the function does not.

    Raises:
        Declined: if it says that it wraps another function than it does.
    """
    if not any(value.__wrapped__ is part for part in gc.get_referents(value)):
        raise Declined("a cached function has no value to compare: what it wraps is hidden", Scope.VALUE)
    _write_wrapped(writer, value)


def _write_wrapped(writer: Writer, value: Any) -> None:
    """Writes a static or class method, or a function behind a cache."""
    if writer.enter(value):
        writer.parts.append(f"<{type(value).__name__} ")
        writer.write(value.__wrapped__)
        writer.parts.append(" attributes ")
        writer.write({name: item for name, item in value.__dict__.items() if name != "__wrapped__"})
        writer.parts.append(">")


def _write_partial(writer: Writer, value: functools.partial) -> None:
    if writer.enter(value):
        writer.parts.append("<partial ")
        writer.write((value.func, value.args, value.keywords, value.__dict__))
        writer.parts.append(">")


FUNCTIONS: dict[int, Handler] = by_identity(
    (types.FunctionType, write_function),
    (types.CodeType, write_code),
    (types.CellType, write_cell),
    (types.MethodType, _write_method),
    (types.BuiltinFunctionType, _write_builtin),
    (types.MethodDescriptorType, _write_member),
    (types.WrapperDescriptorType, _write_member),
    (types.ClassMethodDescriptorType, _write_member),
    (types.GetSetDescriptorType, _write_member),
    (types.MemberDescriptorType, _write_member),
    (types.MethodWrapperType, _write_method_wrapper),
    (property, _write_property),
    (staticmethod, _write_wrapped),
    (classmethod, _write_wrapped),
    (type(functools.lru_cache(len)), _write_cached),
    (functools.partial, _write_partial),
)
"""What writes each kind of function, by the identity of its type."""
