"""Descriptions of containers, ``torch.nn`` modules and tensors as text, including which of them are the same object.

The content of a builtin type is read with the methods of that type, below any overrides in a derived class.

A module has fifteen tables that are nearly always empty. A table is left out if it is as ``Module.__init__`` creates
it. A missing table is written as missing, so that the text determines what was left out. The lines of a module follow
the order of its attributes if these tables come first. They do unless an attribute is set before ``Module.__init__``
runs; then the order is written.

The data of tensors is not described: a tensor in a global, a list, a closure cell or an attribute becomes an input of
the program, and the prologue fetches it from there. The recorder detects a trace that reads tensor data, and its
program is not stored. All attributes are read through the C class below ``torch.Tensor``, so that no override of a
subclass runs.
"""

from __future__ import annotations

import collections
import functools
import gc
import re
import types
import typing
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, islice, repeat, takewhile
from typing import Any

import torch

from fusioncache.accelerators.programs.introspection import (
    ABSENT,
    by_identity,
    contents_of_module,
    find_in_class,
    find_in_first,
    is_derived,
    is_found,
    mro_of,
)
from fusioncache.accelerators.programs.writer import Handler, Writer, write_class_name, write_name
from fusioncache.ir import Declined, Scope


def write_items(writer: Writer, items: Iterable[object], opening: str = "[", closing: str = "]") -> None:
    """Writes items between brackets, in their order."""
    parts = writer.parts
    parts.append(opening)
    for item in items:
        writer.write(item)
        parts.append(", ")
    parts.append(closing)


def write_fields(writer: Writer, names: Iterable[object], items: Iterable[object]) -> None:
    """Writes the items of a tuple in their order, each under its name if it has one."""
    parts = writer.parts
    parts.append("(")
    for name, item in zip(chain(names, repeat(None)), items, strict=False):
        writer.write_named(name, item)
        parts.append(", ")
    parts.append(")")


def write_pairs(writer: Writer, pairs: Iterable[tuple[object, object]]) -> None:
    """Writes the pairs of a dict in their order."""
    parts = writer.parts
    parts.append("{")
    for key, value in pairs:
        writer.write_name(key)
        parts.append(": ")
        writer.write_named(key, value)
        parts.append(", ")
    parts.append("}")


def write_set(writer: Writer, items: Iterable[object]) -> None:
    """Writes the items of a set, sorted by their separate descriptions: a set has no order of its own."""
    write_items(writer, sorted(items, key=writer.write_alone), "{", "}")


def ordered_pairs(value: Any) -> list[tuple[object, object]]:
    """Returns the pairs of an ``OrderedDict`` in its own order, which may differ from that of the underlying dict.

    Pairs are matched by the identity of the key: ``OrderedDict.items`` would call the keys' ``__hash__`` and
    ``__eq__``.
    """
    pairs = {id(key): (key, item) for key, item in dict.items(value)}
    return [pairs[id(key)] for key in collections.OrderedDict.__iter__(value)]


def write_nothing(writer: Writer, value: object) -> None:
    """Writes nothing, for objects without content."""


def _write_named_tuple(writer: Writer, value: tuple[object, ...]) -> None:
    """Writes the items of a tuple, with the names from ``_fields`` of its class if it has these."""
    names = find_in_class(type(value), "_fields")
    write_fields(writer, names if type(names) is tuple else (), tuple.__iter__(value))


def _write_default_dict(writer: Writer, value: Any) -> None:
    writer.write(_default_of(value))
    write_pairs(writer, dict.items(value))


def _write_deque(writer: Writer, value: Any) -> None:
    writer.write(_length_of(value))
    write_items(writer, collections.deque.__iter__(value))


def _literal(read: Callable[[Any], Any]) -> Handler:
    """Returns the handler that writes the exact builtin value of an instance of a derived class."""
    return lambda writer, value: writer.write(read(value))


def _fields(cls: type, *names: str) -> Handler:
    """Returns the handler that writes these fields of a class written in C."""
    fields = [vars(cls)[name].__get__ for name in names]
    return lambda writer, value: writer.write(tuple(read(value) for read in fields))


_default_of, _length_of = (
    vars(collections.defaultdict)["default_factory"].__get__,
    vars(collections.deque)["maxlen"].__get__,
)

CONTENTS: dict[int, Handler] = by_identity(
    (object, write_nothing),
    (types.SimpleNamespace, write_nothing),
    (int, _literal(int.__index__)),
    (float, _literal(float.__float__)),
    (complex, _literal(complex.__complex__)),
    (str, _literal(str.__str__)),
    (bytes, _literal(bytes.__bytes__)),
    (tuple, _write_named_tuple),
    (list, lambda writer, value: write_items(writer, list.__iter__(value))),
    (dict, lambda writer, value: write_pairs(writer, dict.items(value))),
    (set, lambda writer, value: write_set(writer, set.__iter__(value))),
    (frozenset, lambda writer, value: write_set(writer, frozenset.__iter__(value))),
    (collections.OrderedDict, lambda writer, value: write_pairs(writer, ordered_pairs(value))),
    (collections.defaultdict, _write_default_dict),
    (collections.deque, _write_deque),
    (functools.partial, _fields(functools.partial, "func", "args", "keywords")),
    (types.GenericAlias, _fields(types.GenericAlias, "__origin__", "__args__")),
    (property, _fields(property, "fget", "fset", "fdel")),
    (staticmethod, _fields(staticmethod, "__func__")),
    (classmethod, _fields(classmethod, "__func__")),
)
"""Handlers for the content of builtin types that other classes are derived from, by the identity of the type."""


def _shared(cls: type) -> tuple[type, Handler]:
    """Returns a type and its handler, which writes an instance that recurs as its name."""
    content, label = CONTENTS[id(cls)], "" if cls in (list, dict) else f"{cls.__name__} "

    def write(writer: Writer, value: Any) -> None:
        if writer.enter(value):
            writer.parts.append(label)
            content(writer, value)
            if cls in (collections.OrderedDict, types.SimpleNamespace) and value.__dict__:
                write_pairs(writer, value.__dict__.items())

    return cls, write


def tagged(cls: type, *names: str, is_shared: bool = False) -> tuple[type, Handler]:
    """Returns a type and its handler, which writes these attributes of an instance.

    Args:
        cls: the type.
        names: of the attributes.
        is_shared: whether an instance that recurs is written as its name.
    """

    def write(writer: Writer, value: Any) -> None:
        if not is_shared or writer.enter(value):
            writer.write_tagged(cls.__name__, *(getattr(value, name) for name in names))

    return cls, write


def _write_frozenset(writer: Writer, value: frozenset[object]) -> None:
    writer.parts.append("frozenset ")
    write_set(writer, value)


def _write_mapping_proxy(writer: Writer, value: types.MappingProxyType) -> None:
    writer.write_tagged("mappingproxy", gc.get_referents(value)[0])  # its methods may call foreign code


def _write_reference(writer: Writer, value: weakref.ReferenceType) -> None:
    target = value()
    writer.write_tagged("weak reference", *(() if target is None else (target, value.__callback__)))


def _write_type_variable(writer: Writer, value: Any) -> None:
    if writer.enter(value):
        writer.parts.append(f"{type(value).__name__} {write_name(value.__name__)}")


def write_module(writer: Writer, value: types.ModuleType) -> None:
    """Writes a module as its name: the recorder notes each attribute that is looked up in it.

    Raises:
        Declined: if another process would not find it under its name.
    """
    name = contents_of_module(value).get("__name__")
    if not is_found(name, value):
        raise Declined(f"the module {write_name(name)} is not found under its name", Scope.VALUE)
    writer.parts.append(f"module {write_name(name)}")


_NEW = vars(torch.nn.Module())
"""The attributes that ``Module.__init__`` sets, in its order."""
_FIRST = tuple(_NEW)
HOOKS = tuple(name for name, table in _NEW.items() if type(table) is OrderedDict)
"""The attributes that are tables of hooks. Hooks stay in the order of their registration, so these are ordered."""
_TABLES = {"parameter": "_parameters", "buffer": "_buffers", "module": "_modules"}
_OTHERS: Mapping[str, object] = {"training": True, "_non_persistent_buffers_set": set(), "_is_full_backward_hook": None}


def describe_frame(attributes: Mapping[str, object]) -> str:
    """Returns which attributes a module lacks, and the order of all if it is unusual; empty for a standard module.

    Each standard attribute that is missing is listed after a minus. The order of all names follows, unless the
    attributes of a new module come first.
    """
    absent = "".join(f" -{name}" for name in (*_TABLES.values(), *HOOKS, *_OTHERS) if name not in attributes)
    if tuple(islice(attributes, len(_FIRST))) == _FIRST:
        return absent
    return f"{absent} in the order {' '.join(map(write_name, attributes))}"


def has_hooks(value: object, name: str) -> bool:
    """Returns whether a module has hooks in the table of this name; for ``__dict__``, in any table."""
    if not is_derived(type(value), torch.nn.Module):
        return False
    return any(vars(value).get(each) for each in (HOOKS if name == "__dict__" else (name,)))


def list_parts(attributes: Mapping[str, object]) -> Iterator[tuple[str, object, object]]:
    """Yields the parts of a module: the kind of each (empty for an attribute), its name, and its value."""
    for kind, table in _TABLES.items():
        children = attributes.get(table)
        if type(children) is dict:
            yield from ((kind, name, child) for name, child in children.items())
    yield from (("", name, value) for name, value in _list_own(attributes))


def _list_own(attributes: Mapping[str, object]) -> list[tuple[str, object]]:
    """Returns the attributes that differ from a new module's, without the tables of parameters, buffers and submodules.

    Hooks are renumbered in the order of their registration, because their ids count all hooks of the process.
    """
    found: list[tuple[str, object]] = []
    for name, value in attributes.items():
        if type(value) is OrderedDict and name in HOOKS:
            if value:
                found.append((name, _renumber(value, _number_hooks(attributes))))
        elif not _is_as_in_new(name, value):
            found.append((name, value))
    return found


def _is_as_in_new(name: str, value: object) -> bool:
    """True if an attribute other than a table of hooks is as in a new module, or a table that is described apart."""
    if type(value) is dict:
        return name in _TABLES.values()
    usual = _OTHERS.get(name, ABSENT)
    return value is usual or (type(value) is set and not value and type(usual) is set)


def _renumber(hooks: OrderedDict[object, object], numbers: Mapping[int, int]) -> list[tuple[object, object]]:
    return [(numbers[key] if type(key) is int else key, hook) for key, hook in ordered_pairs(hooks)]


def _number_hooks(attributes: Mapping[str, object]) -> dict[int, int]:
    keys = {
        key for name in HOOKS if type(hooks := attributes.get(name)) is OrderedDict for key in hooks if type(key) is int
    }
    return {key: number for number, key in enumerate(sorted(keys))}


_BASE = torch._C.TensorBase


def _field(name: str) -> Callable[[torch.Tensor], Any]:
    return vars(_BASE)[name].__get__


_attributes_of: Callable[[torch.Tensor], dict[str, object]] = vars(torch.Tensor)["__dict__"].__get__
_dtype, _shape, _device, _layout = map(_field, ("dtype", "shape", "device", "layout"))
_requires_grad, _is_leaf = map(_field, ("requires_grad", "is_leaf"))
_is_nested, _is_quantized = map(_field, ("is_nested", "is_quantized"))
_FLAGS: tuple[tuple[str, Callable[[torch.Tensor], bool]], ...] = (
    ("requires_grad", _requires_grad),
    ("conjugated", _BASE.is_conj),
    ("negated", _BASE.is_neg),
    ("inference", _BASE.is_inference),
)
_HOOKS = (
    ("hooks", _field("_backward_hooks")),
    ("hooks after accumulation", _field("_post_accumulate_grad_hooks")),
)


def write_tensor(writer: Writer, tensor: torch.Tensor) -> None:
    """Writes a tensor without its data.

    Raises:
        Declined: if it is sparse, nested or quantized, because strides do not describe such a tensor.
    """
    if not writer.enter(tensor, lasting=True):
        return
    if _layout(tensor) is not torch.strided or _is_nested(tensor) or _is_quantized(tensor):
        raise Declined(
            "a sparse, nested or quantized tensor has no value to compare: it is more than its strides", Scope.VALUE
        )
    parts = writer.parts
    writer.write_class(type(tensor))
    parts.append(f" {_dtype(tensor)} {write_layout(tensor)} {_device(tensor)}")
    _write_flags(writer, tensor)
    _write_storage(writer, tensor)
    attributes = _attributes_of(tensor)
    if attributes:
        parts.append(" attributes ")
        writer.write(attributes)


def write_layout(tensor: torch.Tensor) -> str:
    """Returns the shape and strides of a tensor, and its storage offset if that is not 0."""
    offset = _BASE.storage_offset(tensor)
    return f"{tuple(_shape(tensor))} {_BASE.stride(tensor)}" + (f" offset {offset}" if offset else "")


def _write_flags(writer: Writer, tensor: torch.Tensor) -> None:
    parts = writer.parts
    for name, is_set in _FLAGS:
        if is_set(tensor):
            parts.append(f" {name}")
    if not _is_leaf(tensor):
        parts.append(" computed")
    if _BASE.has_names(tensor):
        parts.append(f" names {_field('names')(tensor)}")
    for name, hooks_of in _HOOKS:
        hooks = hooks_of(tensor)
        if hooks:
            parts.append(f" {name} ")
            writer.write(list(hooks.values()))


def _write_storage(writer: Writer, tensor: torch.Tensor) -> None:
    """Writes the name of the first tensor that was visited in the same storage, if there is one."""
    storage = _BASE.untyped_storage(tensor)
    first = writer.memory.storages.get(storage._cdata)
    if first is None:
        writer.note(writer.memory.storages, storage._cdata, (writer.memory.names[id(tensor)], storage))
    else:
        writer.parts.append(f" in @{first[0]}")


def write_foreign_tensor(writer: Writer, tensor: torch.Tensor) -> None:
    """Writes a tensor of a subclass.

    Raises:
        Declined: if the subclass has a ``__torch_dispatch__``, because it may wrap other tensors and state.
    """
    cls = type(tensor)
    own = takewhile(lambda base: base is not torch.Tensor, mro_of(cls))
    if find_in_first(own, "__torch_dispatch__") is not ABSENT:
        raise Declined(f"a {write_class_name(cls)} has no value to compare: it may hold other tensors", Scope.VALUE)
    write_tensor(writer, tensor)


CONTAINERS: dict[int, Handler] = by_identity(
    _shared(list),
    _shared(dict),
    _shared(set),
    _shared(collections.OrderedDict),
    _shared(collections.defaultdict),
    _shared(collections.deque),
    _shared(types.SimpleNamespace),
    tagged(slice, "start", "stop", "step"),
    tagged(range, "start", "stop", "step"),
    tagged(re.Pattern, "flags", "pattern"),
    tagged(types.GenericAlias, "__origin__", "__args__"),
    tagged(types.UnionType, "__args__"),
    (tuple, lambda writer, value: write_items(writer, value, "(", ")")),
    (frozenset, _write_frozenset),
    (torch.Size, lambda writer, value: write_items(writer, value, "Size(", ")")),
    (types.MappingProxyType, _write_mapping_proxy),
    (weakref.ReferenceType, _write_reference),
    (typing.TypeVar, _write_type_variable),
    (typing.ParamSpec, _write_type_variable),
    (types.ModuleType, write_module),
    (torch.Tensor, write_tensor),
    (torch.nn.Parameter, write_tensor),
)
"""Handlers for containers, modules and tensors, by the identity of the type."""
