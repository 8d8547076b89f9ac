"""Types of torch, Thunder, numpy and Python that were looked at: what each is described by, and what is left out of it.

Operators, symbols and executors go by their names: what they do is their library's, whose version is in the key, and
what a user registers with them is in the key on its own.
"""

from __future__ import annotations

import decimal
import operator
import os
import pathlib
from collections.abc import Callable
from typing import Any

import numpy
import torch
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch.utils.hooks import RemovableHandle

from fusioncache.accelerators.programs.introspection import by_identity, is_derived
from fusioncache.accelerators.programs.literals import is_of_module, write_class_name, write_name
from fusioncache.accelerators.programs.process_groups import describe_group
from fusioncache.accelerators.programs.writer import Handler, Writer
from fusioncache.ir.errors import Declined, Scope
from fusioncache.thunder_adapter.api import Executor, Symbol

LEFT_OUT: dict[str, tuple[frozenset[str], str]] = {
    "torch.fx.graph_module.GraphModule": (
        frozenset({"_graph", "_code", "_lineno_map", "_prologue_start", "_param_name_to_source", "meta"}),
        "it is what a graph module was made from, and the module's own code is what it does",
    ),
    "torch.utils.hooks.RemovableHandle": (frozenset({"id", "next_id"}), "it counts the hooks of the process"),
    "transformers.generation.configuration_utils.GenerationConfig": (
        frozenset({"_original_object_hash"}),
        "it is a hash that is another one in each process",
    ),
}
"""Attributes of classes and of their instances that are left out, and why. A program that reads one is not kept."""


def why_left_out(cls_names: frozenset[str], attribute: str) -> str | None:
    """Returns why an attribute is left out of what has a class of one of these names; None if it is not."""
    for name in cls_names & LEFT_OUT.keys():
        attributes, reason = LEFT_OUT[name]
        if attribute in attributes:
            return reason
    return None


def _refuse_environment(writer: Writer, value: object) -> None:
    raise Declined("the environment is not a value: what is read of it is noted, variable by variable", Scope.VALUE)


def _write_overload(writer: Writer, value: OpOverload) -> None:
    writer.parts.append(f"<operator {value._name}>")


def _write_overloads(writer: Writer, value: OpOverloadPacket) -> None:
    writer.parts.append(f"<operators {value._qualified_op_name}>")


def _write_higher_order(writer: Writer, value: HigherOrderOperator) -> None:
    writer.parts.append(f"<operator of higher order {write_name(value._name)}>")


def _write_symbol(writer: Writer, value: Symbol) -> None:
    """Writes a symbol of Thunder's without the hash that it remembers."""
    if writer.enter(value):
        writer.parts.append(f"<symbol {write_name(value.name)} ")
        writer.write((_name_of_id(value.id), value.is_prim, value.is_fusion, value.executor, value._module))
        writer.write((value.meta, value.python_impl, value._bind_postprocess, value.python_printer))
        writer.write((value._print_as_impl, [str(tag) for tag in value.tags or ()]))
        writer.parts.append(">")


def _name_of_id(identity: object) -> object:
    name = getattr(identity, "_name_", None) if type(type(identity)).__name__ == "EnumType" else None
    return identity if name is None else f"{write_class_name(type(identity))}.{name}"


def _write_executor(writer: Writer, value: Executor) -> None:
    writer.parts.append("<executor ")
    writer.write(value._name)
    writer.parts.append(">")


def _write_handle(writer: Writer, value: RemovableHandle) -> None:
    """Writes the handle of a hook by the place of its hook: its number counts all hooks of the process."""
    hooks = value.hooks_dict_ref()
    place = None if hooks is None else [number for number, key in enumerate(hooks) if key == value.id]
    writer.parts.append(f"<handle of hook {place}>")


def _write_group(writer: Writer, value: Any) -> None:
    """Writes a process group: its ranks, the size of the job and what carries its messages, and no name."""
    if writer.enter(value):
        writer.parts.append(f"<process group {describe_group(value)}>")


def _write_path(writer: Writer, value: pathlib.PurePath) -> None:
    """Writes a path without the text and the hash that it remembers once it was asked for them."""
    writer.write_class(type(value))
    writer.parts.append(" ")
    writer.write(str(value))


def _write_by_text(writer: Writer, value: object) -> None:
    writer.parts.append(f"<{write_class_name(type(value))} {value!r}>")


def _write_universal_function(writer: Writer, value: numpy.ufunc) -> None:
    """Writes a function of numpy's by its name.

    Raises:
        Declined: if it was made of a function of Python's: it does not say of which.
    """
    if vars(numpy).get(value.__name__) is not value:
        raise Declined("a function made by numpy has no value to compare", Scope.VALUE)
    _write_by_text(writer, value)


def _write_getter(writer: Writer, value: Any) -> None:
    """Writes one of the ``operator`` module's getters, which say what they get only to pickle."""
    writer.parts.append(f"<{write_class_name(type(value))} ")
    writer.write(value.__reduce__())
    writer.parts.append(">")


def _write_bound_function(writer: Writer, value: Any) -> None:
    """Writes a method of a class that pybind11 made."""
    writer.write(value.__func__)


def _write_dispatcher(writer: Writer, value: Any) -> None:
    """Writes a function of numpy's that asks its arguments' classes first."""
    writer.parts.append(f"<numpy {write_name(value.__qualname__)} ")
    writer.write(value._implementation)
    writer.parts.append(">")


def _write_array(writer: Writer, value: numpy.ndarray) -> None:
    if not writer.enter(value):
        return
    writer.parts.append(f"<array {value.shape} {value.strides} ")
    _write_numbers(writer, value.dtype, value)


def _write_scalar(writer: Writer, value: numpy.generic) -> None:
    writer.parts.append("<number ")
    _write_numbers(writer, value.dtype, value)


def _write_numbers(writer: Writer, dtype: numpy.dtype, value: Any) -> None:
    _write_dtype(writer, dtype)
    writer.parts.append(" ")
    writer.write(value.tobytes())
    writer.parts.append(">")


def _write_dtype(writer: Writer, value: numpy.dtype) -> None:
    if value.hasobject or value.kind == "V":
        raise Declined("an array of objects or of structures has no value to compare", Scope.VALUE)
    writer.parts.append(f"numpy {value.str}")


def _write_enumerator(writer: Writer, value: Any) -> None:
    """Writes a value of an enumeration made by pybind11."""
    writer.parts.append("<")
    writer.write_class(type(value))
    writer.parts.append(f" {int(value)}>")


def _is_pybind_enumeration(cls: type) -> bool:
    return write_class_name(type(cls)) == "pybind11_builtins.pybind11_type" and "__entries" in vars(cls)


_EXACT: dict[int, Handler] = by_identity(
    (type(os.environ), _refuse_environment),
    (OpOverload, _write_overload),
    (OpOverloadPacket, _write_overloads),
    (Symbol, _write_symbol),
    (RemovableHandle, _write_handle),
    *(((torch.distributed.ProcessGroup, _write_group),) if torch.distributed.is_available() else ()),
    (pathlib.PosixPath, _write_path),
    (pathlib.PurePosixPath, _write_path),
    (decimal.Decimal, _write_by_text),
    (torch.finfo, _write_by_text),
    (torch.iinfo, _write_by_text),
    (operator.attrgetter, _write_getter),
    (operator.itemgetter, _write_getter),
    (operator.methodcaller, _write_getter),
    (numpy.ndarray, _write_array),
    (numpy.ufunc, _write_universal_function),
    (type(numpy.prod), _write_dispatcher),
)


def find_reviewed(cls: type) -> Handler | None:
    """Returns what writes the instances of a class, if the class was looked at."""
    handler = _EXACT.get(id(cls))
    if handler is not None:
        return handler
    derived: tuple[tuple[type, Callable[..., None]], ...] = (
        (Executor, _write_executor),
        (HigherOrderOperator, _write_higher_order),
    )
    for base, write in derived:
        if is_derived(cls, base):
            return write
    if is_of_module(cls, "numpy"):
        if is_derived(cls, numpy.generic):
            return _write_scalar
        if is_derived(cls, numpy.dtype):
            return _write_dtype
    if write_class_name(cls) == "builtins.instancemethod":
        return _write_bound_function
    return _write_enumerator if _is_pybind_enumeration(cls) else None
