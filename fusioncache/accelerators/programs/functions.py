"""Descriptions of functions, and of the reviewed types of torch, Thunder, numpy and Python.

A function is described by its code, its defaults, the contents of its closure cells and its attributes. Its globals are
left out: the recorder notes each lookup of one when the function runs. File names and lines are left out, so that a
moved directory or a new comment changes nothing. Annotations are left out, because they have no effect in a call.

Operators and executors are described by their names, and symbols also by their functions. Their behavior is that of a
library, whose version is in the key. The user's registrations with them are in the key separately.
"""

from __future__ import annotations

import builtins
import functools
import gc
import hashlib
import os
import pathlib
import types
from collections.abc import Mapping
from typing import Any

import numpy
import torch
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch.utils.hooks import RemovableHandle

from fusioncache.accelerators.programs.containers import tagged, write_fields
from fusioncache.accelerators.programs.introspection import (
    DESCRIPTORS,
    by_identity,
    find_module_name,
    is_derived,
    is_under_its_name,
)
from fusioncache.accelerators.programs.writer import (
    LITERALS,
    Handler,
    Memory,
    Writer,
    is_of_module,
    write_class_name,
    write_name,
)
from fusioncache.ir import Declined, Scope
from fusioncache.thunder_adapter.api import Executor, Symbol


def digest_code(memory: Memory, code: types.CodeType) -> str:
    """Returns the digest of a code object and of all code objects nested in it."""
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
        return repr(constant)  # the hash does not reveal it
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
    """Writes a Python function."""
    if not writer.enter(function):
        return
    code = function.__code__
    name = f"{write_name(function.__module__)}.{write_name(function.__qualname__)}"
    writer.parts.append(f"<function {name} {digest_code(writer.memory, code)}")
    if not is_under_its_name(function):
        writer.parts.append(" elsewhere")  # else a function and a copy of it, which are not identical, have one text
    if function.__name__ != code.co_name:
        writer.parts.append(f" named {write_name(function.__name__)}")
    if function.__globals__.get("__name__") != function.__module__:
        writer.parts.append(f" in {write_name(function.__globals__.get('__name__'))}")
    if function.__defaults__ is not None:
        writer.parts.append(" defaults ")
        names = code.co_varnames[: code.co_argcount]
        write_fields(writer, names[len(names) - len(function.__defaults__) :], function.__defaults__)
    if function.__kwdefaults__ is not None:
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
    """Writes the globals and builtins that a function names, if they are not a module's: no read would find them."""
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
    """Returns the names of globals and attributes in a code object and in all code objects nested in it."""
    nested = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return {*code.co_names}.union(*map(list_names, nested))


def write_cell(writer: Writer, cell: types.CellType) -> None:
    """Writes a closure cell, so that functions that share a cell differ from functions with a cell each."""
    if not writer.enter(cell):
        return
    writer.parts.append("cell ")
    try:
        content = cell.cell_contents
    except ValueError:
        writer.parts.append("empty")
    else:
        writer.write(content)


def _write_builtin(writer: Writer, function: types.BuiltinFunctionType) -> None:
    """Writes a function written in C as its name, with the object that it is bound to."""
    owner = function.__self__
    is_method = owner is not None and type(owner) is not types.ModuleType and not _is_of_pybind(owner)
    name = f"{write_name(function.__module__)}.{write_name(function.__qualname__)}"
    writer.write_tagged(f"builtin {name}", *((owner,) if is_method else ()))


def _is_of_pybind(owner: object) -> bool:
    """Returns whether an object is pybind11's record of a function. Such a function is written as its name alone."""
    return write_class_name(type(owner)) == "builtins.PyCapsule" or is_of_module(type(owner), "pybind11_builtins")


def _write_member(writer: Writer, member: Any) -> None:
    """Writes a descriptor of a class written in C, a method or a field, as its name."""
    writer.parts.append(f"<{type(member).__name__} {write_name(member.__name__)} of ")
    writer.write_class(member.__objclass__)
    writer.parts.append(">")


def _write_cached(writer: Writer, value: Any) -> None:
    """Writes a function with an ``lru_cache``, without the cached results, which follow from the function.

    Raises:
        Declined: if its ``__wrapped__`` is not the function that it calls.
    """
    if not any(value.__wrapped__ is part for part in gc.get_referents(value)):
        raise Declined("a cached function has no value to compare: what it wraps is hidden", Scope.VALUE)
    _write_wrapped(writer, value)


def _write_wrapped(writer: Writer, value: Any) -> None:
    """Writes a static method, a class method, or a function with a cache."""
    if writer.enter(value):
        attributes = {name: item for name, item in value.__dict__.items() if name != "__wrapped__"}
        writer.write_tagged(type(value).__name__, value.__wrapped__, attributes)


_LEFT_OUT: Mapping[str, Mapping[str, str]] = {
    "torch.fx.graph_module.GraphModule": dict.fromkeys(
        ("_graph", "_code", "_lineno_map", "_prologue_start", "_param_name_to_source", "meta"),
        "it is what a graph module was made from, and the module's own code is what it does",
    ),
    "torch.utils.hooks.RemovableHandle": dict.fromkeys(("id", "next_id"), "it counts the hooks of the process"),
    "transformers.generation.configuration_utils.GenerationConfig": {
        "_original_object_hash": "it is a hash that is another one in each process"
    },
}
"""Attributes of classes and of their instances that are left out, by the name of the class, each with the reason.

A program that reads one is not stored.
"""


def list_left_out(cls: type) -> Mapping[str, str]:
    """Returns the attributes that are left out of a class and of its direct instances, each with the reason."""
    return _LEFT_OUT.get(write_class_name(cls), {})


def _refuse_environment(writer: Writer, value: object) -> None:
    raise Declined("the environment is not a value: what is read of it is noted, variable by variable", Scope.VALUE)


def _write_symbol(writer: Writer, value: Symbol) -> None:
    """Writes a Thunder symbol without its cached hash."""
    if writer.enter(value):
        kind = (_name_of_id(value.id), value.is_prim, value.is_fusion, value.executor, value._module)
        functions = (value.meta, value.python_impl, value._bind_postprocess, value.python_printer)
        tags = [str(tag) for tag in value.tags or ()]
        writer.write_tagged(f"symbol {write_name(value.name)}", kind, functions, value._print_as_impl, tags)


def _name_of_id(identity: object) -> object:
    name = getattr(identity, "_name_", None) if type(type(identity)).__name__ == "EnumType" else None
    return identity if name is None else f"{write_class_name(type(identity))}.{name}"


def _write_handle(writer: Writer, value: RemovableHandle) -> None:
    """Writes the handle of a hook as the position of the hook, because its id counts all hooks of the process."""
    hooks = value.hooks_dict_ref()
    place = None if hooks is None else [number for number, key in enumerate(hooks) if key == value.id]
    writer.parts.append(f"<handle of hook {place}>")


def describe_group(group: Any) -> str:
    """Returns the properties of a process group that programs depend on: its ranks, the job's size, its backends."""
    from torch.distributed import get_backend_config, get_process_group_ranks, get_world_size

    ranks = ",".join(map(str, get_process_group_ranks(group)))
    return f"ranks {ranks} of {get_world_size()} over {get_backend_config(group)}"


def _write_group(writer: Writer, value: Any) -> None:
    """Writes a process group as ``describe_group`` returns it, without a name."""
    if writer.enter(value):
        writer.parts.append(f"<process group {describe_group(value)}>")


def _write_path(writer: Writer, value: pathlib.PurePath) -> None:
    """Writes a path without its cached text and hash."""
    writer.write_class(type(value))
    writer.parts.append(" ")
    writer.write(str(value))


def _write_by_text(writer: Writer, value: object) -> None:
    writer.parts.append(f"<{write_class_name(type(value))} {value!r}>")


def _write_array(writer: Writer, value: numpy.ndarray) -> None:
    if writer.enter(value):
        _write_scalar(writer, value)


def _write_scalar(writer: Writer, value: Any) -> None:
    """Writes a numpy scalar or array."""
    dtype = value.dtype
    if dtype.hasobject or dtype.kind == "V":
        raise Declined("an array of objects or of structures has no value to compare", Scope.VALUE)
    writer.write_tagged(f"{type(value).__name__} {dtype.str} {value.shape} {value.strides}", value.tobytes())


def _write_enumerator(writer: Writer, value: Any) -> None:
    """Writes a member of an enumeration made by pybind11."""
    writer.parts.append("<")
    writer.write_class(type(value))
    writer.parts.append(f" {int(value)}>")


def _is_pybind_enumeration(cls: type) -> bool:
    return write_class_name(type(cls)) == "pybind11_builtins.pybind11_type" and "__entries" in vars(cls)


FUNCTIONS: dict[int, Handler] = by_identity(
    (types.FunctionType, write_function),
    (types.CodeType, write_code),
    (types.CellType, write_cell),
    tagged(types.MethodType, "__func__", "__self__"),
    (types.BuiltinFunctionType, _write_builtin),
    *((kind, _write_member) for kind in DESCRIPTORS),
    (
        types.MethodWrapperType,
        lambda writer, value: writer.write_tagged(f"method-wrapper {write_name(value.__name__)}", value.__self__),
    ),
    tagged(property, "fget", "fset", "fdel", is_shared=True),
    (staticmethod, _write_wrapped),
    (classmethod, _write_wrapped),
    (type(functools.lru_cache(len)), _write_cached),
    tagged(functools.partial, "func", "args", "keywords", "__dict__", is_shared=True),
    (type(os.environ), _refuse_environment),
    (OpOverload, lambda writer, value: writer.parts.append(f"<operator {value._name}>")),
    (OpOverloadPacket, lambda writer, value: writer.parts.append(f"<operators {value._qualified_op_name}>")),
    (Symbol, _write_symbol),
    (RemovableHandle, _write_handle),
    *(((torch.distributed.ProcessGroup, _write_group),) if torch.distributed.is_available() else ()),
    (pathlib.PosixPath, _write_path),
    (pathlib.PurePosixPath, _write_path),
    (torch.finfo, _write_by_text),
    (torch.iinfo, _write_by_text),
    (numpy.ndarray, _write_array),
)
"""Handlers for functions and reviewed types, by the identity of the type."""


def find_reviewed(cls: type) -> Handler | None:
    """Returns the handler for the instances of a class that derives from a reviewed class; None if it does not."""
    if is_derived(cls, Executor):
        return lambda writer, value: writer.write_tagged("executor", value._name)
    if is_derived(cls, HigherOrderOperator):
        return lambda writer, value: writer.parts.append(f"<operator of higher order {write_name(value._name)}>")
    if is_of_module(cls, "numpy") and is_derived(cls, numpy.generic):
        return _write_scalar
    if write_class_name(cls) == "builtins.instancemethod":  # a method of a class made by pybind11
        return lambda writer, value: writer.write(value.__func__)
    return _write_enumerator if _is_pybind_enumeration(cls) else None
