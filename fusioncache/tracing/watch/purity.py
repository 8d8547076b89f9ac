"""Which calls that Thunder does not interpret leave every object as it is, and depend on their arguments alone.

A block may be written out instead of interpreted only if interpreting it would change nothing but the trace, and if
nothing has changed that it looks at. Thunder interprets Python code, so what remains are functions written in C, and
those that Thunder has something else for. Everything that is not listed here is taken to change something.
"""

from __future__ import annotations

import builtins
import collections
import enum
import functools
import math
import operator
import types
from collections.abc import Callable
from typing import Any

MUTATING = frozenset({
    "__setitem__", "__delitem__", "append", "clear", "extend", "__iadd__", "__imul__", "insert", "pop", "remove",
    "reverse", "sort", "__init__", "__ior__", "popitem", "setdefault", "update", "move_to_end",
})  # fmt: skip
"""Methods of containers that change them."""

_BUILDING = frozenset({
    "BUILD_LIST", "BUILD_MAP", "BUILD_CONST_KEY_MAP", "BUILD_SET", "BUILD_TUPLE", "BUILD_DICT", "NEW",
})  # fmt: skip
_READING = frozenset({
    "LOAD_ATTR", "BINARY_SUBSCR", "INPUT_ARGS", "INPUT_KWARGS", "INPUT_FN", "LOOKASIDE", "BUILTINS",
})  # fmt: skip
_HELPERS = frozenset(
    (
        "MutSequenceWrapperMethods.extend.<locals>.impl",
        "dispatch_to_impl.<locals>.wrapper",
    )
)
"""Thunder's functions that fill a list of their own, which they have as a constant."""

_ATOMS = (int, float, bool, complex, str, bytes, type(None), slice, range, type(Ellipsis))
_KEYED = (dict, collections.OrderedDict, set, frozenset)
_WITH_KEY = frozenset(["__contains__", "__getitem__", "__setitem__", "__delitem__", "get", "pop", "setdefault"])
_NUMBERS = (int, float, bool, complex)
"""Each of these answers that it knows no tensors when it is added to one, without asking the tensor."""
_SHARED = (
    object, type(NotImplemented), types.FunctionType, types.WrapperDescriptorType,
    types.MethodDescriptorType, types.GetSetDescriptorType,
)  # fmt: skip
"""Types of objects of which two blocks that are alike have the same."""
_NEW = (
    object, list, dict, set, frozenset, tuple, filter, map, zip, range, slice, enumerate, reversed, super, int, float,
    bool, str, types.CellType, functools.partial, Exception, StopIteration, KeyError, AttributeError, IndexError,
    collections.OrderedDict,
)  # fmt: skip


class Purity:
    """Knows which functions are pure, which ones change their first argument, and which must not be relied upon."""

    def __init__(self) -> None:
        import torch
        from thunder.core import interpreter, jit_ext
        from thunder.core.symbol import Symbol
        from thunder.torch import _torch_to_thunder_function_map as torch_functions

        mutators = [setattr, object.__setattr__, object.__delattr__, delattr]
        pure: list[Any] = [
            any, bool, enumerate, zip, getattr, hasattr, iter, len, next, reversed, super, type, isinstance,
            type.__call__, functools.partial.__call__, functools.reduce, operator.getitem, types.CellType.__new__,
            jit_ext.is_compiling, torch.finfo, torch.nn.ModuleList.__getitem__, interpreter.is_jitting,
            interpreter.is_jitting_with_raise, jit_ext.prop_lookaside_helper, torch._C._get_tracing_state,
            torch._C._log_api_usage_once, callable, object.__init__, BaseException.__init__, StopIteration.__init__,
            *(each for each in vars(math).values() if callable(each)),
        ]  # fmt: skip
        for function in interpreter._default_provenance_tracking_lookaside_map:
            name = getattr(function, "__name__", "")
            (mutators if name in MUTATING and not _is_of(function, tuple) else pure).append(function)
        stateful = {"_set_grad_enabled", "_enter_autocast", "_exit_autocast", "autograd_function_apply"}
        pure += [each for each in torch_functions if getattr(each, "__name__", "") not in stateful]
        for proxy in (jit_ext.TensorProxy, jit_ext.NumberProxy):
            pure += [function for function, _ in jit_ext.get_methods_properties(proxy)]
        pure += [each for owner in (range, filter, map) for each in (owner.__iter__,)]
        pure += [abs, round, divmod, pow, min, max, sum, issubclass, ord, chr, operator.index]
        self._atomic = {
            id(each) for each in (operator.index, abs, round, divmod, pow, min, max, sum, *vars(math).values())
        }
        self._pure = {id(each): each for each in (*pure, *jit_ext._clang_fn_set)}
        self._mutators = {id(each): each for each in mutators}
        self._new = {id(each) for each in _NEW}
        undone = stateful - {"autograd_function_apply"}
        self._undone = {id(each) for each in torch_functions if getattr(each, "__name__", "") in undone}
        self._symbol, self._own = Symbol, interpreter.ThunderInterpreterObject
        self._internal = {
            id(each) for each in (builtins.all, filter.__next__, set.__contains__, frozenset.__contains__)
        }

    def is_undone(self, fn: Callable[..., Any]) -> bool:
        """Tells whether a call changes only what is given back to Thunder when a trace is begun anew."""
        return id(fn) in self._undone

    def explain(
        self, fn: Callable[..., Any], args: tuple[Any, ...], frame: Any, born: Any, is_opaque: bool
    ) -> str | None:
        """Returns what a call may change or depend on; None if it changes nothing that was there before.

        Args:
            fn: what is called.
            args: what it is called with, in the interpreter's wrappers.
            frame: the interpreter's frame that calls it.
            born: the recording, or the whole session, in which objects are new; None if no object is.
            is_opaque: whether the interpreter simply calls it.
        """
        if isinstance(fn, self._symbol):
            return None
        if fn is next and born is not None and isinstance(args[0].value, self._own) and not _is_born(args[0], born):
            return "takes from an iterator that was there before"
        if _takes_key(fn) and any(not is_plain(arg.value) for arg in args[1:2]):
            return f"calls {_name(fn)} with an object"
        if id(fn) in self._mutators:
            # Without an object it fails; and shortcuts ask in this way whether there is something else for it.
            return None if not args or is_new(args[0], frame, born) else f"calls {_name(fn)}"
        if id(fn) in self._pure and not (id(fn) in self._atomic and not _are_atoms(args)):
            return None
        if is_opaque and self._is_pure_opaque(fn, args, frame, born):
            return None
        return f"calls {_name(fn)}"

    def _is_pure_opaque(self, fn: Any, args: tuple[Any, ...], frame: Any, born: Any) -> bool:
        name, owner = getattr(fn, "__name__", ""), getattr(fn, "__objclass__", None)
        if name == "__new__":
            own = getattr(fn, "__self__", None)
            return id(own) in self._new or (isinstance(own, type) and issubclass(own, BaseException))
        if name == "__init__":
            if owner in _KEYED and len(args) == 1:
                return is_new(args[0], frame, born)
            return isinstance(owner, type) and (owner is object or issubclass(owner, BaseException))
        if name == "__get__":
            return owner in (types.FunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)
        if name == "__next__" and args:
            return self._is_own_iterator(args[0], frame, born)
        if name == "__iter__" and owner is types.GeneratorType:
            return True
        if owner in _ATOMS:
            return _are_atoms(args) or (owner in _NUMBERS and _are_atoms(args, proxies=True))
        module = frame.module if frame is not None else ""
        if id(fn) in self._internal:
            return is_internal(module)
        return module in ("optree.ops", "thunder.core.pytree") and name == "flatten"

    def _is_own_iterator(self, wrapped: Any, frame: Any, born: Any) -> bool:
        value = wrapped.value
        if type(value) is types.GeneratorType:
            return value.gi_code.co_name == "thunder_interpreter_generator" and (
                born is None or _is_born(wrapped, born)
            )
        if isinstance(value, filter | map):
            return is_internal(frame.module) and _is_born(wrapped, born)
        return type(value).__module__ == "builtins" and _is_born(wrapped, born) and _inst(wrapped) == "OPAQUE"


def is_internal(module: str) -> bool:
    """Tells whether code is Thunder's own, or ours in its place."""
    return module.partition(".")[0] in ("thunder", "fusioncache")


def is_new(wrapped: Any, frame: Any, born: Any) -> bool:
    """Tells whether an object was made while this was recorded; of Thunder's own ones, if nothing is, that it is."""
    from thunder.core.interpreter import ThunderInterpreterObject
    from thunder.core.proxies import TensorProxy

    if type(wrapped.value) is TensorProxy:
        return True  # to store into a tensor is an operation of the trace
    internal = frame is not None and is_internal(frame.module)
    if born is None:
        return internal and (isinstance(wrapped.value, ThunderInterpreterObject) or _inst(wrapped) not in _READING)
    if not _is_born(wrapped, born):
        return False
    made = _inst(wrapped)
    if made in _BUILDING or _is_made_by_new(wrapped.provenance):
        return True
    if made == "CONSTANT":
        return frame is not None and frame.qualname in _HELPERS and internal
    return internal and made not in _READING and made != "OPAQUE"


def is_plain(value: Any) -> bool:
    """Tells whether a value is a constant, a tensor or a class: whether no block has one of its own to be compared."""
    import torch
    from thunder.core.proxies import TensorProxy

    if type(value) in (tuple, list, torch.Size):
        return all(is_plain(each) for each in value)
    if type(value) is frozenset:
        return all(type(each) in _ATOMS for each in value)
    kinds = (torch.dtype, torch.device, TensorProxy, type, enum.Enum)
    return type(value) in _ATOMS or type(value) in _SHARED or isinstance(value, kinds)


def _is_born(wrapped: Any, born: Any) -> bool:
    return born is not None and vars(wrapped).get("born") is born


def _is_made_by_new(provenance: Any) -> bool:
    if _opname(provenance.inst) != "OPAQUE":
        return False
    fn = provenance.inputs[0].value
    return getattr(fn, "__name__", "") == "__new__" or fn is types.CellType


def _inst(wrapped: Any) -> str:
    return _opname(wrapped.provenance.inst)


def _opname(inst: Any) -> str:
    return getattr(inst, "opname", None) or inst.value


def _are_atoms(args: tuple[Any, ...], *, proxies: bool = False) -> bool:
    import torch
    from thunder.core.proxies import TensorProxy

    kinds = (torch.dtype, torch.device, TensorProxy) if proxies else (torch.dtype, torch.device)
    return all(type(arg.value) in _ATOMS or isinstance(arg.value, kinds) for arg in args)


def _takes_key(fn: Any) -> bool:
    return getattr(fn, "__objclass__", None) in _KEYED and fn.__name__ in _WITH_KEY


def _is_of(function: Any, owner: type) -> bool:
    return getattr(function, "__objclass__", None) is owner


def _name(fn: Any) -> str:
    return f"{getattr(fn, '__module__', None) or ''}.{getattr(fn, '__qualname__', type(fn).__name__)}".lstrip(".")
