"""Containers, modules of torch.nn and tensors as text, and which of them are one and the same.

The contents of builtin types are read as those see them from whose classes others are derived, below what these
override.

A module has fifteen tables that are empty nearly always. They are left out where they are as ``Module.__init__`` makes
them, and a table that is missing is said to be missing, so that what is left out can be told from the text. The order
of a module's attributes is that of its lines if these tables come first, as they do unless an attribute is set before
``Module.__init__`` runs; then it is written.

Numbers in tensors are not described: what Thunder finds in a global, a list, a closure cell or an attribute becomes an
input of the program, which its prologue gets from there again. A trace that reads numbers makes a program that is not
kept, and it is the recorder that sees this. All is asked of the class in C below ``torch.Tensor``, so that nothing runs
that a subclass overrides.
"""

from __future__ import annotations

import collections
import functools
import gc
import re
import sys
import types
import typing
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, islice, repeat
from typing import Any

import torch

from fusioncache.accelerators.programs.introspection import (
    by_identity,
    contents_of_module,
    find_in_class,
    is_derived,
    mro_of,
    namespace_of,
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
    """Writes the items of a tuple in their order, each of which may have a name."""
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
    """Writes the items of a set, sorted by what each is by itself: a set has no order of its own."""
    parts = writer.parts
    parts.append("{")
    for _, item in sorted(((writer.write_alone(item), item) for item in items), key=lambda pair: pair[0]):
        writer.write(item)
        parts.append(", ")
    parts.append("}")


def ordered_pairs(value: Any) -> list[tuple[object, object]]:
    """Returns the pairs of an ``OrderedDict`` in the order that it keeps beside that of the dict below it.

    The keys' own hashes and equalities are not asked: an ``OrderedDict`` that hands out its values would ask them.
    """
    pairs = {id(key): (key, item) for key, item in dict.items(value)}
    return [pairs[id(key)] for key in collections.OrderedDict.__iter__(value)]


def write_nothing(writer: Writer, value: object) -> None:
    """Writes the content of an object that has none."""


def _write_named_tuple(writer: Writer, value: tuple[object, ...]) -> None:
    """Writes the items of a tuple, whose class may have names for them."""
    names = find_in_class(type(value), "_fields")
    write_fields(writer, names if type(names) is tuple else (), tuple.__iter__(value))


def _write_default_dict(writer: Writer, value: Any) -> None:
    writer.write(_default_of(value))
    write_pairs(writer, dict.items(value))


def _write_deque(writer: Writer, value: Any) -> None:
    writer.write(_length_of(value))
    write_items(writer, collections.deque.__iter__(value))


def _literal(read: Callable[[Any], Any]) -> Handler:
    """Returns what writes the exact value of a builtin type that is in a value of a derived one."""
    return lambda writer, value: writer.write(read(value))


def _fields(cls: type, *names: str) -> Handler:
    """Returns what writes fields that a class written in C has."""
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
"""What writes the content of a builtin type that a class is derived from, by the type's identity."""


def _shared(cls: type) -> tuple[type, Handler]:
    """Returns a type, and what writes its instances: those that are met again by their names."""
    content, label = CONTENTS[id(cls)], "" if cls in (list, dict) else f"{cls.__name__} "

    def write(writer: Writer, value: Any) -> None:
        if writer.enter(value):
            writer.parts.append(label)
            content(writer, value)
            if cls in (collections.OrderedDict, types.SimpleNamespace) and value.__dict__:
                write_pairs(writer, value.__dict__.items())

    return cls, write


def tagged(cls: type, *names: str, is_shared: bool = False) -> tuple[type, Handler]:
    """Returns a type, and what writes its instances by what they have under these names.

    Args:
        cls: the type.
        names: of attributes.
        is_shared: whether an instance that is met again is written as its name.
    """

    def write(writer: Writer, value: Any) -> None:
        if not is_shared or writer.enter(value):
            writer.write_tagged(cls.__name__, *(getattr(value, name) for name in names))

    return cls, write


def _write_frozenset(writer: Writer, value: frozenset[object]) -> None:
    writer.parts.append("frozenset ")
    write_set(writer, value)


def _write_mapping_proxy(writer: Writer, value: types.MappingProxyType) -> None:
    writer.write_tagged("mappingproxy", gc.get_referents(value)[0])  # its own methods may be those of any mapping


def _write_reference(writer: Writer, value: weakref.ReferenceType) -> None:
    target = value()
    writer.write_tagged("weak reference", *(() if target is None else (target, value.__callback__)))


def _write_type_variable(writer: Writer, value: Any) -> None:
    if writer.enter(value):
        writer.parts.append(f"{type(value).__name__} {write_name(value.__name__)}")


def write_module(writer: Writer, value: types.ModuleType) -> None:
    """Writes a module by its name: what is looked up in it is noted when it is looked up.

    Raises:
        Declined: if another process would not find it under its name.
    """
    name = contents_of_module(value).get("__name__")
    if type(name) is not str or not (sys.modules.get(name) is value or _is_of_operators(name, value)):
        raise Declined(f"the module {write_name(name)} is not found under its name", Scope.VALUE)
    writer.parts.append(f"module {write_name(name)}")


def _is_of_operators(name: str, value: types.ModuleType) -> bool:
    """Returns whether something is a namespace of ``torch.ops``, none of which is among Python's modules."""
    return name.startswith("torch.ops.") and contents_of_module(torch.ops).get(name[len("torch.ops.") :]) is value


HOOKS = (
    "_backward_pre_hooks",
    "_backward_hooks",
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)
_TABLES = {"parameter": "_parameters", "buffer": "_buffers", "module": "_modules"}
_OTHERS: Mapping[str, object] = {"training": True, "_non_persistent_buffers_set": set(), "_is_full_backward_hook": None}
_FIRST = tuple(vars(torch.nn.Module()))
"""What every module has, in the order in which it gets it."""


def describe_frame(attributes: Mapping[str, object]) -> str:
    """Returns what is unusual of a module as a whole; nothing of one whose attributes follow what every module has.

    These are the names of what every module has and this one has not, each after a minus, then the order of all names.
    """
    absent = "".join(f" -{name}" for name in (*_TABLES.values(), *HOOKS, *_OTHERS) if name not in attributes)
    if tuple(islice(attributes, len(_FIRST))) == _FIRST:
        return absent
    return f"{absent} in the order {' '.join(map(write_name, attributes))}"


def has_hooks(value: object, name: str) -> bool:
    """Returns whether a module has hooks in the table with this name, or in any of those in its ``__dict__``."""
    if not is_derived(type(value), torch.nn.Module):
        return False
    return any(vars(value).get(each) for each in (HOOKS if name == "__dict__" else (name,)))


def list_parts(attributes: Mapping[str, object]) -> Iterator[tuple[str, object, object]]:
    """Yields what a module consists of: what each part is (nothing for an attribute), its name, and the part."""
    for kind, table in _TABLES.items():
        children = attributes.get(table)
        if type(children) is dict:
            yield from ((kind, name, child) for name, child in children.items())
    yield from (("", name, value) for name, value in _list_own(attributes))


def _list_own(attributes: Mapping[str, object]) -> list[tuple[str, object]]:
    """Returns the attributes that are not as in every module, without the tables of parameters, buffers and submodules.

    Hooks are numbered in the order of their registration: their own numbers count all hooks of the process.
    """
    found: list[tuple[str, object]] = []
    numbers: dict[int, int] | None = None
    for name, value in attributes.items():
        if type(value) is OrderedDict:
            if name not in HOOKS:
                found.append((name, value))
            elif value:
                numbers = numbers if numbers is not None else _number_hooks(attributes)
                found.append(
                    (name, [(numbers[key] if type(key) is int else key, hook) for key, hook in ordered_pairs(value)])
                )
        elif type(value) is dict:
            if name not in _TABLES.values():
                found.append((name, value))
        elif name not in _OTHERS or not _is_same(value, _OTHERS[name]):
            found.append((name, value))
    return found


def _is_same(value: object, usual: object) -> bool:
    return value is usual or (type(value) is set and not value and type(usual) is set)


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
has_names: Callable[[torch.Tensor], bool] = getattr(_BASE, "has_names", lambda tensor: False)
"""Whether dimensions have names. Torch 2.13 has no such tensors."""
_HOOKS = (
    ("hooks", _field("_backward_hooks")),
    ("hooks after accumulation", _field("_post_accumulate_grad_hooks")),
)


def write_tensor(writer: Writer, tensor: torch.Tensor) -> None:
    """Writes a tensor without its numbers.

    Raises:
        Declined: if it is a sparse, nested or quantized one, which say more than strides do.
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
    """Returns the shape of a tensor, its strides, and where in its storage it begins, if not at the start."""
    offset = _BASE.storage_offset(tensor)
    return f"{tuple(_shape(tensor))} {_BASE.stride(tensor)}" + (f" offset {offset}" if offset else "")


def _write_flags(writer: Writer, tensor: torch.Tensor) -> None:
    parts = writer.parts
    for name, is_set in _FLAGS:
        if is_set(tensor):
            parts.append(f" {name}")
    if not _is_leaf(tensor):
        parts.append(" computed")
    if has_names(tensor):
        parts.append(f" names {_field('names')(tensor)}")
    for name, hooks_of in _HOOKS:
        hooks = hooks_of(tensor)
        if hooks:
            parts.append(f" {name} ")
            writer.write(list(hooks.values()))


def _write_storage(writer: Writer, tensor: torch.Tensor) -> None:
    """Writes which tensor was met first in the same storage, if one was."""
    storage = _BASE.untyped_storage(tensor)
    first = writer.memory.storages.get(storage._cdata)
    if first is None:
        writer.note(writer.memory.storages, storage._cdata, (writer.memory.names[id(tensor)], storage))
    else:
        writer.parts.append(f" in @{first[0]}")


def write_foreign_tensor(writer: Writer, tensor: torch.Tensor) -> None:
    """Writes a tensor of a subclass.

    Raises:
        Declined: if it has a ``__torch_dispatch__``, behind which there may be other tensors and state.
    """
    cls = type(tensor)
    for base in mro_of(cls):
        if base is torch.Tensor:
            break
        if "__torch_dispatch__" in namespace_of(base):
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
"""What writes each kind of container, module and tensor, by the identity of its type."""
