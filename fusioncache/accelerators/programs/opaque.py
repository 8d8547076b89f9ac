"""Calls that Thunder does not interpret: which depend on nothing but their arguments and the key, and change nothing.

Python code is interpreted, so these are functions written in C, and those that Thunder has something else for. A call
is allowed if its function is on the list in ``checks``, with arguments of which ``native`` knows that they run no code
of their own, or if it is an operation of Thunder's, which the key's function map covers. To change an object is allowed
if it was ``made`` in this trace, or if Thunder does it again at the end of each call. All other calls make a program
that is not kept.
"""

from __future__ import annotations

import collections
import functools
import types
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any

from fusioncache.accelerators.programs import native
from fusioncache.accelerators.programs.checks import (
    Made,
    Trace,
    explain_arguments,
    explain_atoms,
    is_interpreted,
    is_key,
    list_checks,
)
from fusioncache.accelerators.programs.native import is_internal, is_internal_call, name_of
from fusioncache.thunder_adapter.hooks import MUTATING

_OF_ATOMS = frozenset(
    map(id, (int, float, complex, bool, str, bytes, range, slice, type(None), tuple, list, dict, set, frozenset))
)
_IN_ANY_ORDER = frozenset({
    "__contains__", "__len__", "__init__", "__and__", "__or__", "__sub__", "__xor__", "__rand__", "__ror__", "__rsub__",
    "__rxor__", "__iand__", "__ior__", "__isub__", "__ixor__", "union", "intersection", "difference", "copy", "clear",
    "symmetric_difference", "issubset", "issuperset", "isdisjoint", "__eq__", "__ne__", "__le__", "__lt__", "__ge__",
    "__gt__", "add", "discard", "remove", "update", "intersection_update", "difference_update",
    "symmetric_difference_update",
})  # fmt: skip
"""Methods of sets that come to the same in whichever order the items are."""
_CHANGING_SETS = frozenset({
    "add", "discard", "intersection_update", "difference_update", "symmetric_difference_update",
})  # fmt: skip
"""Methods that change a set, beside those that other containers have as well."""
_APPLIED = frozenset(map(id, (int, float, complex, bool, str, abs, round, len, ord, chr, None)))
"""Functions that ``map`` and ``filter`` may call without the interpreter, if they get constants."""
_HINTS = {
    "_lru_cache_wrapper.__call__": "which remembers results, and Thunder runs what is behind it unwatched",
    "map.__new__": "which Thunder runs unwatched: a comprehension is interpreted",
    "filter.__new__": "which Thunder runs unwatched: a comprehension is interpreted",
}
"""What people want to know of calls that models have made."""
_BORN_EMPTY = (object, types.CellType, super, functools.partial)


class Judge(Trace):
    """Judges the calls of one trace."""

    def __init__(self, made: Made, names: Callable[[Any], bool]) -> None:
        """Takes what knows which objects were made in the trace, and what tells which ones texts tell from others."""
        super().__init__(made, names)
        self._known: dict[int, tuple[Any, bool]] = {}

    def explain(self, fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, is_opaque: bool) -> str | None:
        """Returns why a call must not be made; None if it may be.

        Args:
            fn: what is called.
            args: what it is called with, in the interpreter's wrappers; nothing if only what stands in is asked for.
            kwargs: and by keyword.
            is_opaque: whether the interpreter simply calls it.
        """
        check = list_checks().get(id(fn))
        if check is not None:
            return check(self, fn, args, kwargs)
        if self._is_operation(fn):
            return explain_arguments(fn, args, kwargs, native.is_plain)
        return self._explain_opaque(fn, args, kwargs) if is_opaque else f"calls {name_of(fn)}"

    def _is_operation(self, fn: Any) -> bool:
        known = self._known.get(id(fn))
        if known is None:
            known = self._known[id(fn)] = fn, _is_operation(fn)
        return known[1]

    def _explain_opaque(self, fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
        name, owner = getattr(fn, "__name__", ""), getattr(fn, "__objclass__", None)
        if is_internal_call(fn, name, args):
            return None
        if name == "__new__":
            return self._explain_new(fn, args, kwargs)
        if name == "__init__" and isinstance(owner, type) and issubclass(owner, BaseException):
            return None
        if name == "__next__" and owner is types.GeneratorType:
            is_own = args and is_interpreted(args[0].value)
            return None if is_own else "advances a generator that existed before tracing"
        if (name == "__next__" and owner in (*native.ITERATORS, map, filter)) or (
            name == "__iter__" and owner is types.GeneratorType
        ):
            return None
        own = getattr(fn, "__self__", None)
        if name == "__setattr__" and isinstance(owner, type) and issubclass(owner, BaseException):
            return None if self.made.has(args[0]) else "sets an attribute of an exception that existed before tracing"
        if id(owner) in _OF_ATOMS or (isinstance(own, type) and id(own) in _OF_ATOMS):
            return self._explain_method(fn, name, args, kwargs)
        return _refuse_call(fn)

    def _explain_new(self, fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
        own = fn.__self__
        if own in _BORN_EMPTY or (isinstance(own, type) and issubclass(own, BaseException)):
            return None
        if id(own) in _OF_ATOMS or own in _made_of_atoms():
            return explain_atoms(fn, args[1:], kwargs)
        if own in (map, filter) and len(args) > 2 and id(args[1].value) in _APPLIED:
            return explain_atoms(fn, args[2:], kwargs)
        return _refuse_call(fn)

    def _explain_method(self, fn: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
        changes = name in MUTATING or name in _CHANGING_SETS or name.startswith("__i")
        if changes and args and not self._may_change(name, args):
            return f"calls {name_of(fn)} of an object that existed before tracing"
        if getattr(fn, "__objclass__", None) in (set, frozenset):
            if name not in _IN_ANY_ORDER and args and native.has_own_order(args[0].value):
                return f"calls {name_of(fn)}, and sets have no order of their own"
            if any(native.is_nan(each.value) for each in args):
                return f"calls {name_of(fn)} with a NaN"
            args = tuple(each for each in args if not is_key(self, each) and not self._holds_keys(each))
        elif name == "join" and len(args) == 2 and self.consume(args[1].value):
            args = args[:1]
        return explain_atoms(fn, args, kwargs)

    def _holds_keys(self, wrapped: Any) -> bool:
        """True if a set holds nothing but what may be a key."""
        value = wrapped.value
        if not native.is_set(value):
            return False
        return all(native.is_atom(each) or self._is_told(each) for each in value)

    def _is_told(self, value: Any) -> bool:
        return native.is_hashed_by_identity(value) and (self.made.knows(value) or self.names(value))

    def _may_change(self, name: str, args: tuple[Any, ...]) -> bool:
        value = args[0].value
        if not isinstance(value, (list, dict, set)) or name == "__iter__" or self.made.has(args[0]):
            return True  # of numbers and strings nothing is changed: ``__index__`` and ``__int__`` are no assignments
        if type(value) is set and name in ("add", "discard") and len(args) == 2 and native.is_atom(args[1].value):
            return (args[1].value in value) is (name == "add")  # as each assignment to a buffer of a module does
        return False


def _refuse_call(fn: Any) -> str:
    name = name_of(fn)
    return f"calls {name}, {_HINTS[name]}" if name in _HINTS else f"calls {name}"


def _is_operation(fn: Any) -> bool:
    """True if what is called is Thunder's, and does what Thunder's own code says."""
    from fusioncache.thunder_adapter.accelerator_api import jit_ext
    from fusioncache.thunder_adapter.api import Symbol, ltorch

    if isinstance(fn, Symbol):
        return _is_thunders(fn.meta)
    if fn in jit_ext._clang_fn_set:
        return True
    context = jit_ext.get_jit_ctx()
    if fn in context.ad_hoc_executor._lookasides:
        return False  # a foreign function in C, which Thunder calls with random numbers to see what it returns
    operation = context._executor_lookasides.get(fn)
    if operation is not None:  # what stands in is wrapped once more, and which executors there are is in the key
        operation = operation if isinstance(operation, Symbol) else _unwrap(operation)
    else:
        operation = ltorch._torch_to_thunder_function_map.get(fn)
    if operation is None:
        return id(fn) in _methods_of_proxies()
    return _is_thunders(operation.meta if isinstance(operation, Symbol) else operation)


def _unwrap(function: Any) -> Any:
    """Returns what the interpreter's wrapper of a function calls."""
    from fusioncache.thunder_adapter.api import Symbol

    cells = getattr(function, "__closure__", None) or ()
    held = [cell.cell_contents for cell in cells if isinstance(cell.cell_contents, Symbol | types.FunctionType)]
    return held[0] if len(held) == 1 else function


def _is_thunders(function: Any) -> bool:
    """True if a function is written in Thunder or in this package."""
    while isinstance(function, partial):
        function = function.func
    if not isinstance(function, types.FunctionType):
        return False
    return all(is_internal(each.__globals__) for each in _layers(function))


def _layers(function: Any) -> list[types.FunctionType]:
    found = [function]
    while isinstance(function := vars(function).get("__wrapped__"), types.FunctionType):
        found.append(function)
    return found


@lru_cache(maxsize=1)
def _methods_of_proxies() -> Mapping[int, Any]:
    from fusioncache.thunder_adapter.accelerator_api import jit_ext

    found = [
        function
        for proxy in (jit_ext.TensorProxy, jit_ext.NumberProxy)
        for function, _ in jit_ext.get_methods_properties(proxy)
    ]
    return {id(each): each for each in (*found, jit_ext.prop_lookaside_helper)}


@lru_cache(maxsize=1)
def _made_of_atoms() -> tuple[Any, ...]:
    import torch

    return (torch.device, torch.Size, collections.OrderedDict)
