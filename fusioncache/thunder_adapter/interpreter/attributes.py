"""Attributes: those of plain kinds looked up at once, where Thunder interprets what Python does to find them.

Thunder asks the type of whatever it finds in a class for ``__get__``, ``__set__`` and ``__delete__``, each through its
interpreter, and interprets ``torch.nn.Module.__getattr__``. Here that is known for functions, methods written in C,
slots, and values of builtin types. All others, as properties, are left to Thunder.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import wraps
from inspect import ismethod
from types import (
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    NoneType,
    WrapperDescriptorType,
)
from typing import Any

from fusioncache.thunder_adapter.installation import find_known
from fusioncache.thunder_adapter.interpreter.steps import keeps_history
from fusioncache.thunder_adapter.interpreter.wrapped import (
    call_method,
    find_function,
    is_wrapped,
    look_up_builtins,
    wrap_globals,
)

_VALUES = frozenset({NoneType, bool, int, float, complex, str, bytes, tuple, list, dict, set, frozenset})
_METHODS = frozenset({FunctionType, MethodDescriptorType, WrapperDescriptorType})
_SLOTS = frozenset({GetSetDescriptorType, MemberDescriptorType})

_CONTAINERS = frozenset({tuple, list, dict})  # which have no ``__dict__``

_ABSENT = object()


def shorten_object_getattribute(original: Callable[..., Any]) -> Callable[..., Any]:
    """Finds an attribute in a class or an instance, where Thunder interprets how Python tells descriptors apart."""
    from thunder.core.interpreter import _interpret_call, do_raise, unwrap, wrap_const
    from thunder.core.proxies import AnyProxy

    from fusioncache.thunder_adapter.api import TensorProxy

    @wraps(original)
    def _object_getattribute_lookaside(obj: Any, name: Any) -> Any:
        key = unwrap(name)
        if not _is_plain_lookup(obj, key) or isinstance(obj.value, AnyProxy):
            return original(obj, name)
        value, owner = obj.value, type(obj.value)
        found: Any = next((vars(base)[key] for base in owner.__mro__ if key in vars(base)), _ABSENT)
        kind: Any = type(found)
        if kind in _SLOTS:
            try:
                return kind.__get__(found, value, owner)
            except Exception as error:
                return do_raise(error)
        of_tensor = kind is property and owner is TensorProxy and found.fset is found.fdel is None
        if found is not _ABSENT and kind not in _METHODS and kind not in _VALUES and not of_tensor:
            return original(obj, name)
        if owner in _CONTAINERS and kind in _METHODS:
            return kind.__get__(found, value, owner)
        attributes = obj.attribute_wrappers.get("__dict__")
        if attributes is None:
            attributes = _interpret_call(getattr, obj, wrap_const("__dict__"), wrap_const(_ABSENT))
        if unwrap(attributes) is not _ABSENT:
            if not is_wrapped(attributes, dict):
                return original(obj, name)
            own = attributes.value.get(key, _ABSENT)
            if own is not _ABSENT:
                return own
        if of_tensor:
            return _call_getter(found, obj) if find_function(found.fget) else original(obj, name)
        if found is _ABSENT:
            return do_raise(AttributeError(key))
        return kind.__get__(found, value, owner) if kind in _METHODS else found

    return _object_getattribute_lookaside


def _call_getter(found: property, tensor: Any) -> Any:
    """Returns what a property of a tensor's, which has no setter, is for a tensor; or the signal of an error."""
    from thunder.core.interpreter import _interpret_call, unwrap

    return unwrap(_interpret_call(found.fget, tensor))


def _is_plain_lookup(obj: Any, name: Any) -> bool:
    """Tells whether this is looked for as Python does, in classes and ``__dict__``, and nobody watches."""
    from thunder.core.interpreter import WrappedValue

    if type(obj) is not WrappedValue or type(name) is not str or (name.startswith("__") and name.endswith("__")):
        return False
    if isinstance(obj.value, (type, super)) or keeps_history():
        return False
    # Containers are looked into while Thunder calls what binds a method to them.
    return _is_whole(obj) if type(obj.value) in _CONTAINERS else not isinstance(obj.value, (dict, Sequence))


def _is_whole(container: Any) -> bool:
    """Tells whether Thunder knows of each item of a container that something else may have changed."""
    if isinstance(container.value, list):
        return container.item_wrappers is not None and len(container.item_wrappers) == len(container.value)
    return not isinstance(container.value, dict) or len(container.key_wrappers) == len(container.item_wrappers)


def shorten_getattr(original: Callable[..., Any]) -> Callable[..., Any]:
    """Looks into a module's dicts of parameters, buffers and modules, where Thunder interprets code that does so."""
    from thunder.core import interpreter

    known = find_known("module attributes").get("torch.nn:Module.__getattr__")
    raised = interpreter.INTERPRETER_SIGNALS.EXCEPTION_RAISED

    @wraps(original)
    def _getattr_lookaside(obj: Any, name: Any, *default: Any) -> Any:
        if len(default) > 1 or not _may_be_member(obj, name, known):
            return original(obj, name, *default)
        found = interpreter._object_getattribute_lookaside(obj, name)
        if found is not raised:
            return interpreter.wrap_attribute(found, obj, name)
        context = interpreter.get_interpreterruntimectx()
        if not isinstance(context.curexc, AttributeError):
            return found
        context.curexc = None
        getter = interpreter.wrap_attribute(known, obj, interpreter.wrap_const("__getattr__"))
        found = _get_member(obj, name, getter)
        if found is None:
            found = interpreter._interpret_call(getter, obj, name)
        if found is raised and default and isinstance(context.curexc, AttributeError):
            context.curexc = None
            return default[0]
        return found

    return _getattr_lookaside


def _may_be_member(obj: Any, name: Any, known: Any) -> bool:
    """Tells whether an attribute is looked for with torch's own ``__getattr__`` after Python's way."""
    from thunder.core.interpreter import WrappedValue

    return (
        type(obj) is WrappedValue
        and known is not None
        and getattr(type(obj.value), "__getattr__", None) is known
        and is_wrapped(name, str)
        and name.value not in obj.attribute_wrappers
        and not keeps_history()
    )


def _get_member(module: Any, name: Any, getter: Any) -> Any:
    """Returns a parameter, buffer or module of a module, or None if there is none or Thunder has to find it."""
    from thunder.core.interpreter import get_interpretercompilectx, wrap_attribute, wrap_const

    if get_interpretercompilectx().lookaside(getter.value, module, name) is not None:
        return None
    names = wrap_globals(wrap_attribute)  # any function of Thunder's interpreter
    look_up_builtins(names, "hasattr", "getattr")
    # What a frame of the function would have had Thunder wrap.
    wrap_attribute(getter.value.__globals__, getter, wrap_const("__globals__"))
    for kind in map(wrap_const, ("_parameters", "_buffers", "_modules")):
        attributes = load(module, "__dict__")
        if not is_wrapped(attributes, dict):
            return None
        if call_method("__contains__", attributes, kind).value:
            members = call_method("__getitem__", load(module, "__dict__"), kind)
            if not is_wrapped(members, dict):
                return None
            if call_method("__contains__", members, name).value:
                return call_method("__getitem__", members, name)
    return None


def shorten_load_attr(original: Callable[..., Any]) -> Callable[..., Any]:
    """Calls at once what stands in for ``getattr``."""
    from thunder.core import interpreter

    @wraps(original)
    def load_attr_handler(inst: Any, /, stack: Any, co: Any, **kwargs: Any) -> Any:
        obj = stack.getitem_wrapped(-1)
        if not _may_load(obj):
            return original(inst, stack=stack, co=co, **kwargs)
        stack.pop_wrapped()
        name = interpreter.wrap_const(co.co_names[inst.arg >> 1])
        if inst.arg & 1:
            return interpreter.load_method_helper(obj, name, stack)
        return interpreter.check_and_append(stack, _load(obj, name))

    return load_attr_handler


def shorten_load_method(original: Callable[..., Any]) -> Callable[..., Any]:
    """Loads a method's function and what it is bound to, by what stands in for ``getattr``."""
    from thunder.core import interpreter

    raised = interpreter.INTERPRETER_SIGNALS.EXCEPTION_RAISED

    @wraps(original)
    def load_method_helper(obj: Any, name: Any, stack: Any) -> Any:
        if not _may_load(obj):
            return original(obj, name, stack)
        method = _load(obj, name)
        if method is raised:
            return method
        bound_to = getattr(method.value, "__self__", _ABSENT)
        if bound_to is obj.value:
            interpreter.populate_attribute_wrapper(method, "__self__", obj)
        if ismethod(method.value):
            first, second = load(method, "__func__"), load(method, "__self__")
        elif sys.version_info < (3, 13):
            first, second = interpreter.wrap_const(interpreter.Py_NULL()), method
        else:  # as ``CALL`` has it from then on
            first, second = method, interpreter.wrap_const(interpreter.Py_NULL())
        stack.append(first)
        stack.append(second)
        return None

    return load_method_helper


def _may_load(obj: Any) -> bool:
    """Tells whether an attribute may be loaded without what Thunder asserts of the arguments of every call."""
    from thunder.core.interpreter import WrappedValue

    return type(obj) is WrappedValue and _is_whole(obj) and not keeps_history()


def load(obj: Any, name: str) -> Any:
    """Returns an attribute, or the signal that an exception was raised, as the interpreter's ``getattr`` does."""
    from thunder.core.interpreter import wrap_const

    return _load(obj, wrap_const(name))


def _load(obj: Any, name: Any) -> Any:
    from thunder.core.interpreter import get_interpretercompilectx

    return get_interpretercompilectx().lookaside(getattr, obj, name)(obj, name)
