"""Checks whether an operation in C may run foreign Python code that Thunder does not interpret.

A comparison runs ``__eq__``, ``isinstance`` runs ``__instancecheck__``, ``hasattr`` runs a property, a key of a dict
runs ``__hash__``. The recorder cannot observe what such code reads, so it must not run. The checks here accept only
objects and classes that are known to run none. This module also names functions and finds their packages.
"""

from __future__ import annotations

import abc
import collections
import enum
import sys
import types
from collections.abc import Iterator, Mapping
from functools import lru_cache, partial
from itertools import dropwhile
from typing import Any

import torch

from fusioncache.accelerators.programs import introspection
from fusioncache.accelerators.programs.introspection import (
    ABSENT,
    DESCRIPTORS,
    find_in_class,
    find_in_first,
    ids_of,
    is_derived,
    is_static,
    is_under_its_name,
    list_derived,
    mro_of,
)
from fusioncache.accelerators.sizes.sizes import WATCHED
from fusioncache.accelerators.sizes.values import is_numel_class
from fusioncache.thunder_adapter.accelerator_api import interpreter, jit_ext
from fusioncache.thunder_adapter.api import Device, Symbol, dtypes, ltorch

_ATOMS: tuple[type, ...] = (
    int, float, complex, bool, str, bytes, type(None), type(Ellipsis), type(NotImplemented), range,
)  # fmt: skip
_METHODS = ids_of(
    types.FunctionType,
    types.BuiltinFunctionType,
    *DESCRIPTORS,
)
_BOUND = ids_of(staticmethod, classmethod)
_NUMBERS_WITH_NAN = ids_of(float, complex)
_SETS = ids_of(set, frozenset)
_MAPPINGS = ids_of(dict, collections.OrderedDict)
_COMPARED_BY_IDENTITY = ids_of(types.FunctionType, types.BuiltinFunctionType, types.ModuleType)
_ITERATED: tuple[Any, ...] = ([], (), range(0), range(1 << 70), "", "é", b"", {}, {}.items(), {}.values(), set())
ITERATORS: tuple[type, ...] = (*(type(iter(each)) for each in _ITERATED), zip, enumerate, reversed)
"""Python's iterator types that run no Python code. An iterator made before the trace has no description."""
_MOST_ITEMS = 10_000


_SINGLETON_TYPES_OF_TORCH = (torch.dtype, torch.layout, torch.memory_format)
_CONSTANT_TYPES = ids_of(*_ATOMS, slice, *WATCHED, *_SINGLETON_TYPES_OF_TORCH, torch.device, torch.finfo, torch.iinfo)
"""Types whose instances run no Python code, or only that of a watched size."""
_SINGLETON_TYPES = ids_of(type(None), bool, type(Ellipsis), type(NotImplemented), *_SINGLETON_TYPES_OF_TORCH)
_SEQUENCES = ids_of(tuple, list, set, frozenset, torch.Size)


_HELPERS = frozenset((id(vars(interpreter)), id(vars(jit_ext))))
"""The ids of the namespaces of the modules with the interpreter's helper functions."""


@lru_cache(maxsize=1)
def _list_thunders_types() -> tuple[type, ...]:
    """Returns the base classes of Thunder's types for proxies, dtypes and devices."""
    from fusioncache.thunder_adapter.accelerator_api import ProxyInterface

    return ProxyInterface, dtypes.dtype, Device


def is_atom(value: Any) -> bool:
    """True if a value is a constant of Python or torch that contains no tensor."""
    kind = type(value)
    if kind is slice:
        return is_atom(value.start) and is_atom(value.stop) and is_atom(value.step)
    return id(kind) in _CONSTANT_TYPES


def is_plain(value: Any, *, atoms: bool = False) -> bool:
    """True if a value consists of constants and of Thunder's proxies, dtypes and devices.

    A set of several items is not plain: its order differs between processes.

    Args:
        value: the value.
        atoms: whether only constants are allowed.
    """
    pending, count = [value], 0
    while pending:
        each = pending.pop()
        kind = type(each)
        count += 1
        if count > _MOST_ITEMS:
            return False
        if kind is slice:
            pending += (each.start, each.stop, each.step)
        elif id(kind) in _CONSTANT_TYPES or kind is type or (not atoms and issubclass(kind, _list_thunders_types())):
            continue
        elif id(kind) in _SEQUENCES and not is_unordered_set(each):
            pending += each
        elif id(kind) in _MAPPINGS:
            pending += (*each.keys(), *each.values())
        elif id(kind) in _views():
            pending.append(each._mapping)
        elif issubclass(kind, BaseException) and is_static(kind):
            pending += each.args
        elif not is_numel_class(kind):
            return False
    return True


def is_nan(value: Any) -> bool:
    """True if a value is or contains a NaN, which does not equal itself but is found in containers by identity."""
    if id(type(value)) in _NUMBERS_WITH_NAN:
        return bool(value != value)
    return has_nan(value)


def has_nan(value: Any) -> bool:
    """True if a container contains a NaN."""
    kind = type(value)
    if kind is slice:
        value = (value.start, value.stop, value.step)
    if kind is slice or id(kind) in _SEQUENCES:
        return any(map(is_nan, value))
    return id(kind) in _MAPPINGS and any(map(is_nan, (*value.keys(), *value.values())))


def is_unordered_set(value: Any) -> bool:
    """True if this is a set of several items: descriptions do not include their order."""
    return isinstance(value, set | frozenset) and len(value) > 1


def is_set(value: Any) -> bool:
    """True if this is a ``set`` or ``frozenset``, and not of a subclass."""
    return id(type(value)) in _SETS


def is_set_of(value: Any, *kinds: type) -> bool:
    """True if this is a set whose items all have the same one of these types, and so have one sorted order."""
    return is_set(value) and any(all(type(each) is kind for each in value) for kind in kinds)


def is_plain_member(value: Any) -> bool:
    """True if this is a member of an enumeration that overrides neither hashing nor equality."""
    kind = type(value)
    if not (isinstance(kind, enum.EnumType) and issubclass(kind, enum.Enum)):
        return False
    is_hashed = find_in_class(kind, "__hash__") is vars(enum.Enum)["__hash__"] or _is_as_in_object(kind, "__hash__")
    return is_hashed and _is_as_in_object(kind, "__eq__")


def is_hashed_by_identity(value: Any) -> bool:
    """True if the type of a value (of a class: its metaclass) inherits hashing and equality from ``object``."""
    return _is_as_in_object(type(value), "__hash__", "__eq__")


@lru_cache(maxsize=1)
def _views() -> frozenset[int]:
    return ids_of(interpreter.MappingItemsWrapper, interpreter.MappingKeysView, interpreter.MappingValuesWrapper)


def is_proxy(value: Any) -> bool:
    """True if a value is a Thunder proxy, which represents a tensor or a number in a trace."""
    return issubclass(type(value), _list_thunders_types()[0])


def is_singleton(value: Any) -> bool:
    """True if each process has one object with this value, so that identity and equality are the same."""
    kind = type(value)
    if id(kind) in _SINGLETON_TYPES:
        return True
    return (isinstance(value, enum.Enum) and isinstance(kind, enum.EnumType)) or _is_of_library(value)


def _is_of_library(value: Any) -> bool:
    """True if an object is a sentinel of the standard library: without attributes, and held by its class's module."""
    module = vars(type(value)).get("__module__")
    if type(module) is not str or module.partition(".")[0] not in sys.stdlib_module_names or module == "builtins":
        return False
    names = vars(sys.modules[module]) if module in sys.modules else {}
    return not _attributes_of(value) and any(each is value for each in list(names.values()))


def is_class(value: Any) -> bool:
    """True if a value is a class."""
    return issubclass(type(value), type)


def is_compared_by_identity(value: Any) -> bool:
    """True if the type of a value (of a class: its metaclass) compares by identity and runs no Python code."""
    if id(type(value)) in _COMPARED_BY_IDENTITY:
        return True
    return _is_as_in_object(type(value), "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__")


def _is_as_in_object(kind: type, *names: str) -> bool:
    """True if a class inherits each of these names from ``object``."""
    return all(find_in_class(kind, name) is vars(object)[name] for name in names)


def explain_attribute(value: Any, name: str) -> str | None:
    """Returns why access to an attribute (of a class or ``super``, too) may run foreign code; None if it cannot."""
    if type(value) is super:
        return _explain_super(value, name)
    return _explain_class(value, name) if is_class(value) else _explain_object(value, name)


def _explain_object(value: Any, name: str) -> str | None:
    kind = type(value)
    if issubclass(kind, _list_thunders_types()):
        return None
    if type(find_in_class(kind, "__getattribute__")) is not types.WrapperDescriptorType:
        return f"asks for {name_of(kind)}.__getattribute__"
    found = find_in_class(kind, name)
    if found is not ABSENT:
        return None if _is_harmless(found) else f"asks for what {name_of(kind)} has as {name}"
    attributes = _attributes_of(value)
    if attributes is not None and name in attributes:
        return None
    if issubclass(kind, types.ModuleType) and attributes is not None and "__getattr__" in attributes:
        return f"asks for __getattr__ of the module {attributes.get('__name__')}"
    getter = find_in_class(kind, "__getattr__")
    if getter is ABSENT or getter is vars(torch.nn.Module)["__getattr__"]:
        return None
    return f"asks for {name_of(kind)}.__getattr__"


def _attributes_of(value: Any) -> dict[str, Any] | None:
    descriptor = find_in_class(type(value), "__dict__")
    if type(descriptor) not in (types.GetSetDescriptorType, types.MemberDescriptorType):
        return None
    found = descriptor.__get__(value)
    return found if type(found) is dict else None


def _explain_class(cls: type, name: str) -> str | None:
    meta = type(cls)
    if (
        find_in_class(meta, "__getattribute__") is not vars(type)["__getattribute__"]
        or find_in_class(meta, "__getattr__") is not ABSENT
    ):
        return f"asks for {name_of(meta)}.__getattr__"
    of_meta = find_in_class(meta, name)
    if of_meta is not ABSENT and not _is_harmless(of_meta):
        return f"asks for what {name_of(meta)} has as {name}"
    found = find_in_class(cls, name)
    if found is ABSENT or _is_harmless(found) or type(found) is property:
        return None
    return f"asks for what {name_of(cls)} has as {name}"


def _explain_super(value: Any, name: str) -> str | None:
    bound = value.__self_class__
    if bound is None:
        return None
    behind = list(dropwhile(lambda each: each is not value.__thisclass__, mro_of(bound)))[1:]
    found = find_in_first(behind, name)
    if found is ABSENT or _is_harmless(found):
        return None
    return f"asks for what {name_of(bound)} has behind {name_of(value.__thisclass__)} as {name}"


def _is_harmless(found: Any) -> bool:
    """True if access to an attribute with this value in a class returns it unchanged, or binds it in C."""
    kind = type(found)
    if id(kind) in _METHODS:
        return True
    if id(kind) in _BOUND:
        return id(type(found.__func__)) in _METHODS or type(found.__func__) is type
    return find_in_class(kind, "__get__") is ABSENT


def explain_instance_check(value: Any, cls: Any) -> str | None:
    """Returns why ``isinstance(value, cls)`` may run foreign code; None if it cannot."""
    # __class__ of Thunder's proxies returns a tensor or number type, and that of a watched size returns int.
    if not (_is_as_in_object(type(value), "__class__") or issubclass(type(value), (*_list_thunders_types(), *WATCHED))):
        return f"asks {name_of(type(value))}.__class__"
    return explain_class_check(cls)


def explain_class_check(cls: Any) -> str | None:
    """Returns why ``isinstance`` or ``issubclass`` with ``cls`` may run foreign code; None if it cannot."""
    if type(cls) is tuple:
        return next(filter(None, map(explain_class_check, cls)), None)
    if type(cls) is types.UnionType:
        return next(filter(None, map(explain_class_check, cls.__args__)), None)
    if not is_class(cls):
        return f"asks {name_of(type(cls))}.__instancecheck__"
    derived = list_derived(cls)[1:] if is_derived(type(cls), abc.ABCMeta) else ()  # an abstract class asks these, too
    reasons = (_explain_own_check(each, "__subclasscheck__") for each in derived)
    return _explain_own_check(cls, "__instancecheck__", "__subclasscheck__") or next(filter(None, reasons), None)


def _explain_own_check(cls: type, *names: str) -> str | None:
    for name in names:
        found = find_in_class(type(cls), name)
        if found is not vars(type)[name] and found is not vars(abc.ABCMeta)[name] and not _is_torchs(found):
            return f"asks {name_of(type(cls))}.{name}"
    hook = find_in_class(cls, "__subclasshook__")
    of_abc = type(hook) is classmethod and hook.__func__.__globals__ is vars(sys.modules["_collections_abc"])
    return None if of_abc or _is_as_in_object(cls, "__subclasshook__") else f"asks {name_of(cls)}.__subclasshook__"


def _is_torchs(found: Any) -> bool:
    return type(found) is types.FunctionType and find_package(found.__globals__) == "torch"


_OWN = ("thunder", "fusioncache")


def name_of(fn: Any) -> str:
    """Returns the module and qualified name of a function or a class, for messages."""
    owner = getattr(fn, "__self__", None)
    module = getattr(fn, "__module__", None) or (owner.__name__ if isinstance(owner, types.ModuleType) else "")
    name = getattr(fn, "__qualname__", None) or type(fn).__qualname__
    return name if module in ("", "builtins") else f"{module}.{name}"


def find_package(namespace: Mapping[str, Any]) -> str:
    """Returns the package of the module with this namespace; empty if no module has it."""
    return (introspection.find_module_name(namespace) or "").partition(".")[0]


def is_internal(namespace: Mapping[str, Any]) -> bool:
    """True if this is the namespace of a module of Thunder or of this package."""
    return find_package(namespace) in _OWN


def find_user_frame() -> Any:
    """Returns the innermost interpreted frame that is not the interpreter's, or None.

    The interpreter also interprets small helper functions that replace a call or an access; these act for their caller.
    """
    return next(iterate_user_frames(), None)


def iterate_user_frames() -> Iterator[Any]:
    """Returns the interpreted frames, innermost first, without those of the interpreter's helper functions."""
    frames = reversed(interpreter.get_interpreterruntimectx().frame_stack)
    return (frame for frame in frames if id(frame.globals.value) not in _HELPERS)


def is_canonical(function: Any) -> bool:
    """True if a function is the object found under its name, so that an equal description means the same object."""
    return isinstance(function, types.FunctionType | types.BuiltinFunctionType) and is_under_its_name(function)


def is_thunders_class(cls: type) -> bool:
    """True if a class belongs to Thunder or to this package, and so is determined by the versions in the key."""
    try:
        return is_internal(introspection.find_module(cls.__module__)) and (
            is_under_its_name(cls) or is_numel_class(cls)
        )
    except LookupError:
        return False


def is_internal_call(fn: Any, name: str, args: tuple[Any, ...]) -> bool:
    """True if the interpreted code that makes this call is Thunder's, this package's or optree's, and the call is safe.

    These packages call some functions, such as ``all``, on types and tensors.
    """
    if name not in ("all", "__next__", "__new__", "__iter__", "__contains__", "flatten"):
        return False
    actor = find_user_frame()
    if actor is None:
        return False
    names = actor.globals.value
    if not is_internal(names) and introspection.find_module_name(names) != "optree.ops":
        return False
    if name == "flatten":
        return all(is_plain(each.value) or is_class(each.value) for each in args)
    owner = fn.__self__ if name == "__new__" else getattr(fn, "__objclass__", None)
    return fn is all or owner in (filter, map, set, frozenset)


def is_operation(fn: Any) -> bool:
    """True if the function is a Thunder operation, implemented by code of Thunder or of this package."""
    if isinstance(fn, Symbol):
        return _is_thunders(fn.meta)
    if fn in jit_ext._clang_fn_set:
        return True
    context = jit_ext.get_jit_ctx()
    if fn in context.ad_hoc_executor._lookasides:
        return False  # a foreign function in C: Thunder calls it with random inputs to infer its results
    operation = context._executor_lookasides.get(fn)
    if operation is not None:  # the lookaside is wrapped once more; the list of executors is in the key
        operation = operation if isinstance(operation, Symbol) else _unwrap(operation)
    else:
        operation = ltorch._torch_to_thunder_function_map.get(fn)
    if operation is None:
        return id(fn) in _methods_of_proxies()
    return _is_thunders(operation.meta if isinstance(operation, Symbol) else operation)


def _unwrap(function: Any) -> Any:
    """Returns the function or symbol that an interpreter's wrapper calls; if it has none or several, the wrapper."""
    cells = getattr(function, "__closure__", None) or ()
    held = [cell.cell_contents for cell in cells if isinstance(cell.cell_contents, Symbol | types.FunctionType)]
    return held[0] if len(held) == 1 else function


def _is_thunders(function: Any) -> bool:
    """True if a function, and each function that it wraps, is defined in Thunder or in this package."""
    while isinstance(function, partial):
        function = function.func
    if not isinstance(function, types.FunctionType):
        return False
    while isinstance(function, types.FunctionType) and is_internal(function.__globals__):
        function = vars(function).get("__wrapped__")
    return not isinstance(function, types.FunctionType)


@lru_cache(maxsize=1)
def _methods_of_proxies() -> Mapping[int, Any]:
    found = [function for function, _ in list_proxy_methods()]
    return {id(each): each for each in (*found, jit_ext.prop_lookaside_helper)}


def list_proxy_methods() -> list[tuple[Any, Any]]:
    """Returns the methods and properties of Thunder's proxies, each with the operation that Thunder calls for it."""
    kinds = jit_ext.NumberProxy, jit_ext.TensorProxy
    return [pair for kind in kinds for pair in jit_ext.get_methods_properties(kind)]
