"""Values as Thunder's interpreter makes them by the ten thousand: wrappers, records of where they come from.

Most of them hold a name, a number, None or a function, of which only the first few questions that Thunder asks of any
value are to be asked.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    NoneType,
    WrapperDescriptorType,
)
from typing import Any

_NEVER_KEPT = frozenset({str, int, float, bool, NoneType})
"""The types of values that have a new wrapper each time."""
_MAPPED = _NEVER_KEPT - {str} | {
    FunctionType,
    BuiltinFunctionType,
    MethodWrapperType,
    WrapperDescriptorType,
    MethodDescriptorType,
    MethodType,
    dict,
    type,
    object,
}
"""Types of what is no sequence. Their wrappers keep wrappers of items by key."""
_PLAIN = _MAPPED | {str, list, tuple}
"""Types of what is neither a tensor nor a module."""


def shorten_record(original: Callable[..., Any]) -> Callable[..., Any]:
    """Combines the flags of the inputs of a record in one loop, in which it also looks at their types."""
    from dis import Instruction

    from thunder.core.interpreter import ProvenanceRecord, PseudoInst

    @wraps(original)
    def __post_init__(self: Any) -> None:
        inputs, flags = self.inputs, -1
        if type(inputs) is not list or type(self.inst) not in (PseudoInst, Instruction):
            return original(self)
        for each in inputs:
            if type(each) is not ProvenanceRecord:
                return original(self)
            flags &= each.ext_flag
        self.inputs = inputs.copy()
        self.ext_flag = flags if inputs else 0
        return None

    return __post_init__


def shorten_wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
    """Makes the wrapper of a value that is no sequence without asking the abstract class of sequences."""
    from thunder.core.interpreter import (
        INTERPRETER_CALLBACKS,
        ProvenanceRecord,
        PseudoInst,
        get_interpretercompilectx,
        get_interpreterruntimectx,
    )

    @wraps(original)
    def __init__(self: Any, value: Any, /, *, provenance: Any) -> None:
        kind = type(value)
        if type(provenance) is not ProvenanceRecord or not (kind is str or kind in _MAPPED):
            return original(self, value, provenance=provenance)
        context = get_interpretercompilectx()
        self.python_typ = kind
        self.nothing = self.original_value = object()
        self.has_item_tracking = False
        self.value = value
        self.item_wrappers = None if kind is str else {}
        if kind is not str:
            self.key_wrappers = {}
        self.attribute_wrappers = {}
        self.provenance = provenance
        if provenance.inst is PseudoInst.CONSTANT:
            provenance.value = value
        if kind not in _NEVER_KEPT:
            get_interpreterruntimectx().cache_wrapper(self)
        callback = context.callback(INTERPRETER_CALLBACKS.WRAP_CALLBACK)
        if callback is not None:
            callback(self)
        return None

    return __init__


def shorten_wrap(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns what is a wrapper already, and makes a new one of what never has the wrapper that was made before."""
    from thunder.core.interpreter import WrappedValue, get_interpretercompilectx

    @wraps(original)
    def wrap(value: Any, /, *, provenance: Any) -> Any:
        kind = type(value)
        if kind is WrappedValue and not isinstance(value.value, list | dict):
            return value
        if kind in _NEVER_KEPT and get_interpretercompilectx()._with_provenance_tracking:
            return WrappedValue(value, provenance=provenance)
        return original(value, provenance=provenance)

    return wrap


def shorten_wrap_const(original: Callable[..., Any]) -> Callable[..., Any]:
    """Makes the wrapper of a name, a number or None, and the record that it is a constant, field by field."""
    from thunder.core import interpreter, jit_ext

    record_type, wrapper_type = interpreter.ProvenanceRecord, interpreter.WrappedValue
    if list(record_type.__dataclass_fields__) != ["inst", "inputs", "output_idx", "output_key", "value", "ext_flag"]:
        raise LookupError("a record of where a value comes from has other fields")
    inst, callback = interpreter.PseudoInst.CONSTANT, interpreter.INTERPRETER_CALLBACKS.WRAP_CALLBACK
    flag, contexts, new = jit_ext.EXT_FLAG_IS_PROXY_DERIVED, interpreter._interpretercompilectx, object.__new__

    @wraps(original)
    def wrap_const(value: Any, /, *, provenance: Any = None) -> Any:
        kind = type(value)
        if provenance is not None or kind not in _NEVER_KEPT:
            return original(value, provenance=provenance)
        context = contexts.get()
        if not (context._with_provenance_tracking and _marks_constants(context._callbacks.get(callback))):
            return original(value)
        record: Any = new(record_type)
        record.inst, record.inputs, record.output_idx, record.output_key = inst, [], 0, None
        record.value, record.ext_flag = value, flag
        wrapper: Any = new(wrapper_type)
        wrapper.python_typ, wrapper.value, wrapper.provenance = kind, value, record
        wrapper.nothing = wrapper.original_value = object()
        wrapper.has_item_tracking, wrapper.attribute_wrappers = False, {}
        if kind is str:
            wrapper.item_wrappers = None
        else:
            wrapper.item_wrappers, wrapper.key_wrappers = {}, {}
        jit_ext.get_jit_ctx().show_progress_if_verbose()
        return wrapper

    return wrap_const


def _marks_constants(callback: Any) -> bool:
    """Tells whether this callback does nothing to the wrapper of a plain constant but to mark it."""
    return getattr(callback, "__code__", None) is _MARKING


def shorten_provenance_on_stack(original: Callable[..., Any]) -> Callable[..., Any]:
    """Puts a wrapper on the stack as it is, without a record of where it comes from that nobody would look at."""
    from thunder.core.interpreter import WrappedValue

    @wraps(original)
    def get_provenance_record(self: Any, value: Any, key: Any = None) -> Any:
        if type(value) is not WrappedValue or key is not None or self.provenance_inst is None:
            return original(self, value, key)
        if isinstance(value.value, list | dict):
            return original(self, value)
        self.output_idx += 1
        return value

    return get_provenance_record


def shorten_callback(original: Callable[..., Any]) -> Callable[..., Any]:
    """Marks a constant as one, which needs no proxy, without asking whether it is a module or a tensor."""
    from thunder.core.interpreter import PseudoInst
    from thunder.core.jit_ext import EXT_FLAG_IS_PROXY_DERIVED, get_jit_ctx

    @wraps(original)
    def _general_jit_wrap_callback(value: Any) -> Any:
        provenance = value.provenance
        if provenance.inst is not PseudoInst.CONSTANT or type(value.value) not in _PLAIN:
            return original(value)
        get_jit_ctx().show_progress_if_verbose()
        provenance.ext_flag |= EXT_FLAG_IS_PROXY_DERIVED
        return None

    return _general_jit_wrap_callback


(_MARKING,) = (each for each in shorten_callback.__code__.co_consts if isinstance(each, CodeType))
"""The code of the callback that marks constants."""
