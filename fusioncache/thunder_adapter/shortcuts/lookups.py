"""Shortcuts for globals, attributes, cells and conditions, without interpreting how Python finds or tests them.

The interpreter wraps every value together with its origin. A lookup in a plain container ends in a method for the
wrapper; the interpreted code before it only finds that method.

Thunder checks the type of each value that it finds in a class for ``__get__``, ``__set__`` and ``__delete__``, each
through its interpreter, and interprets ``torch.nn.Module.__getattr__``. Here the answer is known for functions, methods
written in C, slots, and values of builtin types. All others are left to Thunder, such as most properties.

``torch.nn.Module`` makes nine cells in each call, for hooks, and tests eight dicts of hooks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import wraps
from types import (
    CellType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    NoneType,
    WrapperDescriptorType,
)
from typing import Any

from thunder.core import interpreter, jit_ext

from fusioncache.thunder_adapter.api import TensorProxy
from fusioncache.thunder_adapter.installation import find_known
from fusioncache.thunder_adapter.shortcuts.values import (
    call_method,
    find_function,
    is_wrapped,
    keeps_history,
    look_up_builtins,
    needs_every_step,
    wrap_globals,
)


def shorten_globals(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a ``globals_lookup`` that reads the dicts of globals and builtins without interpreted code."""

    @wraps(original)
    def globals_lookup(globals_dict: Any, name: Any) -> Any:
        if not is_wrapped(globals_dict, dict) or not is_wrapped(name, str):
            return original(globals_dict, name)
        if name.value in globals_dict.value:
            return call_method("__getitem__", globals_dict, name)
        if type(globals_dict.value.get("__builtins__")) is dict and name.value in globals_dict.value["__builtins__"]:
            builtins = call_method("__getitem__", globals_dict, interpreter.wrap_const("__builtins__"))
            return call_method("__getitem__", builtins, name)
        return original(globals_dict, name)

    return globals_lookup


_VALUES = frozenset({NoneType, bool, int, float, complex, str, bytes, tuple, list, dict, set, frozenset})
_METHODS = frozenset({FunctionType, MethodDescriptorType, WrapperDescriptorType})
_SLOTS = frozenset({GetSetDescriptorType, MemberDescriptorType})

_CONTAINERS = frozenset({tuple, list, dict})  # which have no ``__dict__``

_ABSENT = object()


def shorten_object_getattribute(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns an attribute lookup that applies Python's descriptor rules without interpreting them."""
    from thunder.core.interpreter import _interpret_call, do_raise, unwrap, wrap_const
    from thunder.core.proxies import AnyProxy

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
    """Returns the value of a tensor's property that has no setter; or the signal of an error."""
    return interpreter.unwrap(interpreter._interpret_call(found.fget, tensor))


def _is_plain_lookup(obj: Any, name: Any) -> bool:
    """True if Python's default lookup, in classes and ``__dict__``, applies and no history is recorded."""
    if (
        type(obj) is not interpreter.WrappedValue
        or type(name) is not str
        or (name.startswith("__") and name.endswith("__"))
    ):
        return False
    if isinstance(obj.value, (type, super)) or keeps_history():
        return False
    # When Thunder binds a method to a container, it checks the container's item wrappers.
    return _is_whole(obj) if type(obj.value) in _CONTAINERS else not isinstance(obj.value, (dict, Sequence))


def _is_whole(container: Any) -> bool:
    """True if the wrapper of a container has all its items. Other code may have changed a list or dict meanwhile."""
    if isinstance(container.value, list):
        return container.item_wrappers is not None and len(container.item_wrappers) == len(container.value)
    return not isinstance(container.value, dict) or len(container.key_wrappers) == len(container.item_wrappers)


def shorten_getattr(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a lookaside of ``getattr`` that reads a module's dicts of members without interpreting torch's code."""
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
    """True if the lookup of an attribute is Python's default one, followed by torch's ``__getattr__``."""
    return (
        type(obj) is interpreter.WrappedValue
        and known is not None
        and getattr(type(obj.value), "__getattr__", None) is known
        and is_wrapped(name, str)
        and name.value not in obj.attribute_wrappers
        and not keeps_history()
    )


def _get_member(module: Any, name: Any, getter: Any) -> Any:
    """Returns a parameter, buffer or submodule of a module, or None if Thunder has to find it."""
    wrap = interpreter.wrap_const
    if interpreter.get_interpretercompilectx().lookaside(getter.value, module, name) is not None:
        return None
    names = wrap_globals(interpreter.wrap_attribute)  # any function of Thunder's interpreter
    look_up_builtins(names, "hasattr", "getattr")
    # A frame of the function would have wrapped its globals.
    interpreter.wrap_attribute(getter.value.__globals__, getter, wrap("__globals__"))
    for kind in map(wrap, ("_parameters", "_buffers", "_modules")):
        attributes = _load(module, "__dict__")
        if not is_wrapped(attributes, dict):
            return None
        if call_method("__contains__", attributes, kind).value:
            members = call_method("__getitem__", _load(module, "__dict__"), kind)
            if not is_wrapped(members, dict):
                return None
            if call_method("__contains__", members, name).value:
                return call_method("__getitem__", members, name)
    return None


def _load(obj: Any, name: str) -> Any:
    """Returns an attribute, or the signal that an exception was raised, as the interpreter's ``getattr`` does."""
    wrapped = interpreter.wrap_const(name)
    return interpreter.get_interpretercompilectx().lookaside(getattr, obj, wrapped)(obj, wrapped)


def shorten_make_cell(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a handler of MAKE_CELL that makes a cell without looking up ``__new__`` and ``__init__`` of its type."""

    @wraps(original)
    def make_cell_handler(inst: Any, /, frame: Any, **kwargs: Any) -> Any:
        make = find_function(CellType.__new__)
        if make is not interpreter._cell_new_provenance_tracking_lookaside or needs_every_step():
            return original(inst, frame=frame, **kwargs)
        value, code, kind = frame.localsplus[inst.arg], frame.code, interpreter.wrap_const(CellType)
        if isinstance(value, interpreter.Py_NULL):
            frame.localsplus[inst.arg] = make(kind)
        else:
            value = interpreter.store_deref_callback(value, inst.argval, code.co_cellvars, code.co_freevars)
            frame.localsplus[inst.arg] = make(kind, value)
        return None

    return make_cell_handler


_PLAIN = (bool, int, float, complex, str, bytes, NoneType)
_SIZED = (dict, OrderedDict, list, tuple)


def shorten_jump(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a handler of POP_JUMP_IF_TRUE or POP_JUMP_IF_FALSE that tests plain values itself."""
    usual, in_turn = jit_ext._general_jit_lookaside_map[bool], interpreter._default_lookaside_map[bool]

    @wraps(original)
    def pop_jump_handler(inst: Any, /, stack: Any, **kwargs: Any) -> Any:
        jumps_if = inst.opname == "POP_JUMP_IF_TRUE"
        is_true = _tell(stack.getitem_wrapped(-1), usual, in_turn, anew=jumps_if)
        if is_true is None:
            return original(inst, stack=stack, **kwargs)
        value = stack.pop_wrapped().value
        if jumps_if and type(value) is not bool:
            look_up_builtins(wrap_globals(original), "bool")
        return inst.arg if is_true is jumps_if else None

    return pop_jump_handler


def _tell(value: Any, usual: Any, in_turn: Any, *, anew: bool) -> bool | None:
    """Returns whether a wrapped value is true; None if Thunder has to find out.

    Args:
        value: in the interpreter's wrapper.
        usual: Thunder's lookaside of ``bool``.
        in_turn: the lookaside that it calls.
        anew: whether Thunder would make new wrappers of the value and its items if no code holds them.
    """
    if not is_wrapped(value, *_PLAIN, *_SIZED):
        return None
    if needs_every_step() or interpreter.get_interpretercompilectx().lookaside(bool, value) is not usual:
        return None
    if type(value.value) is bool:
        return value.value  # type: ignore[no-any-return]
    if type(value.value) in _SIZED:
        if value.value and anew:
            return None
        value.track_items()
    _look_up(value.value, wrap_globals(in_turn))
    return bool(value.value)


def _look_up(value: Any, names: Any) -> None:
    """Wraps the builtins that Thunder looks up to find out whether a plain value is true."""
    look_up_builtins(names, "object", "getattr", "type")
    if hasattr(type(value), "__bool__"):
        look_up_builtins(names, "callable")
    else:
        look_up_builtins(names, "hasattr", "len", "isinstance", "int")
