"""Decides which calls that Thunder does not interpret cannot distinguish two similar blocks.

Such calls neither hash nor compare objects that are specific to a block. A call that is not listed here is assumed to
do so. An observer that covers the trace ensures that a call depends on nothing unknown and has no lasting effect.
"""

from __future__ import annotations

import collections
import enum
import functools
import math
import operator
import types
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch

from fusioncache.accelerators.programs.native import list_proxy_methods
from fusioncache.accelerators.sizes.sizes import WATCHED
from fusioncache.thunder_adapter.accelerator_api import interpreter, jit_ext
from fusioncache.thunder_adapter.api import Symbol, TensorProxy, ltorch
from fusioncache.thunder_adapter.hooks import WITH_KEY, has_type

_ATOMS = (int, float, bool, complex, str, bytes, type(None), slice, range, type(Ellipsis), *WATCHED)
_KEYED = (dict, collections.OrderedDict, set, frozenset)
_NUMBERS = (int, float, bool, complex)
"""Types whose operators return ``NotImplemented`` for a tensor without calling the tensor's methods."""
_SHARED = (
    object, type(NotImplemented), types.FunctionType, types.WrapperDescriptorType,
    types.MethodDescriptorType, types.GetSetDescriptorType,
)  # fmt: skip
"""Types of objects that two similar blocks share."""
_NEW = (
    object, list, dict, set, frozenset, tuple, filter, map, zip, range, slice, enumerate, reversed, super, int, float,
    bool, str, types.CellType, functools.partial, Exception, StopIteration, KeyError, AttributeError, IndexError,
    collections.OrderedDict,
)  # fmt: skip
_INTERNAL = (all, filter.__next__, set.__contains__, frozenset.__contains__)
"""Functions that only Thunder's own code may call."""


@cache
def _list_known() -> tuple[Mapping[int, Any], frozenset[int]]:
    """Returns the functions whose calls cannot distinguish blocks, by address.

    With them, the addresses of those of which this holds for plain values only.
    """
    known: list[Any] = [
        setattr, object.__setattr__, object.__delattr__, delattr,
        any, bool, enumerate, zip, getattr, hasattr, iter, len, next, reversed, super, type, isinstance,
        type.__call__, functools.partial.__call__, functools.reduce, operator.getitem, types.CellType.__new__,
        jit_ext.is_compiling, torch.finfo, torch.nn.ModuleList.__getitem__, interpreter.is_jitting,
        interpreter.is_jitting_with_raise, jit_ext.prop_lookaside_helper, torch._C._get_tracing_state,
        torch._C._log_api_usage_once, callable, object.__init__, BaseException.__init__, StopIteration.__init__,
    ]  # fmt: skip
    known += interpreter._default_provenance_tracking_lookaside_map
    stateful = {"_set_grad_enabled", "_enter_autocast", "_exit_autocast", "autograd_function_apply"}
    torch_functions = ltorch._torch_to_thunder_function_map
    known += [each for each in torch_functions if getattr(each, "__name__", "") not in stateful]
    known += [function for function, _ in list_proxy_methods()]
    known += [owner.__iter__ for owner in (range, filter, map)]
    of_numbers = (operator.index, abs, round, divmod, pow, min, max, sum, *vars(math).values())
    known += [*of_numbers, issubclass, ord, chr]
    return {id(each): each for each in (*known, *jit_ext._clang_fn_set)}, frozenset(map(id, of_numbers))


def explain_call(fn: Any, args: tuple[Any, ...], frame: Any, *, is_opaque: bool) -> str | None:
    """Returns why a call may distinguish two similar blocks; None if it cannot.

    Args:
        fn: the called function.
        args: its arguments, in the interpreter's wrappers.
        frame: the interpreter's frame that calls it.
        is_opaque: whether the interpreter calls it without interpreting it.
    """
    if isinstance(fn, Symbol):
        return None
    if _takes_key(fn) and any(not is_plain(arg.value) for arg in args[1:2]):
        return f"calls {_name(fn)} with an object"
    known, of_numbers = _list_known()
    if id(fn) in known and not (id(fn) in of_numbers and not _are_atoms(args)):
        return None
    if is_opaque and _is_known_opaque(fn, args, frame):
        return None
    return f"calls {_name(fn)}"


def _is_known_opaque(fn: Any, args: tuple[Any, ...], frame: Any) -> bool:
    name, owner = getattr(fn, "__name__", ""), getattr(fn, "__objclass__", None)
    if name == "__new__":
        own = getattr(fn, "__self__", None)
        return any(own is each for each in _NEW) or (isinstance(own, type) and issubclass(own, BaseException))
    if name == "__init__":
        if owner in _KEYED and len(args) == 1:
            return True
        return isinstance(owner, type) and (owner is object or issubclass(owner, BaseException))
    if name == "__get__":
        return owner in (types.FunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)
    if name == "__next__" and args:
        return type(args[0].value).__module__ == "builtins"
    if name == "__iter__" and owner is types.GeneratorType:
        return True
    if owner in _ATOMS:
        return _are_atoms(args) or (owner in _NUMBERS and _are_atoms(args, proxies=True))
    module = frame.module if frame is not None else ""
    if any(fn is each for each in _INTERNAL):
        return is_internal(module)
    return module in ("optree.ops", "thunder.core.pytree") and name == "flatten"


def is_internal(module: str | None) -> bool:
    """True if a module is of Thunder or fusioncache. Code that Dynamo generates has no module."""
    return module is not None and module.partition(".")[0] in ("thunder", "fusioncache")


def is_plain(value: Any) -> bool:
    """True if a value is a constant, a tensor or a class, so that comparing it cannot distinguish two blocks."""
    if has_type(value, (tuple, list, torch.Size)):
        return all(is_plain(each) for each in value)
    if type(value) is frozenset:
        return all(has_type(each, _ATOMS) for each in value)
    kinds = (torch.dtype, torch.device, TensorProxy, type, enum.Enum)
    return has_type(value, _ATOMS) or has_type(value, _SHARED) or isinstance(value, kinds)


def _are_atoms(args: tuple[Any, ...], *, proxies: bool = False) -> bool:
    kinds = (torch.dtype, torch.device, TensorProxy) if proxies else (torch.dtype, torch.device)
    return all(has_type(arg.value, _ATOMS) or isinstance(arg.value, kinds) for arg in args)


def _takes_key(fn: Any) -> bool:
    return getattr(fn, "__objclass__", None) in _KEYED and fn.__name__ in WITH_KEY


def _name(fn: Any) -> str:
    return f"{getattr(fn, '__module__', None) or ''}.{getattr(fn, '__qualname__', type(fn).__name__)}".lstrip(".")
