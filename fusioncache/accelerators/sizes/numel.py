"""The class of ``x.numel``: an integer that can be called, as torch has a method where Thunder first had a property.

Thunder makes it anew whenever something is looked up in a tensor, so that it is never found under its name. A class is
taken for it if it is one like ours in all that a class can have, and its functions look their names up where Thunder's
do: then it does what Thunder's does, whoever made it.
"""

from __future__ import annotations

import builtins
import sys
from types import CodeType, FunctionType, GetSetDescriptorType
from typing import Any

_MODULE = "thunder.core.proxies"
_PLACE = "TensorProxy.__getattr__.<locals>._Numel"
_UNSET = ("__defaults__", "__doc__", "__kwdefaults__")
_EMPTY = ("__annotations__", "__dict__", "__type_params__")

_bases_of: Any = type.__dict__["__bases__"].__get__
_namespace_of: Any = type.__dict__["__dict__"].__get__


def _make() -> Any:
    """Returns a class that is written as Thunder's, also in a function. It is only compared."""

    class _Numel(int):
        def __new__(cls, value):  # type: ignore[no-untyped-def]
            assert isinstance(value, int), f"Expected int, got {type(value)}"
            return int.__new__(cls, value)

        def __call__(self):  # type: ignore[no-untyped-def]
            return int(self)

    return _Numel


_KNOWN = _make()


def is_numel_class(cls: type) -> bool:
    """Tells whether a class is Thunder's for the number of a tensor's elements."""
    if type(cls) is not type or (cls.__module__, cls.__name__, cls.__qualname__) != (_MODULE, "_Numel", _PLACE):
        return False
    own, known = _namespace_of(cls), _namespace_of(_KNOWN)
    return (
        _bases_of(cls) == (int,)
        and own.keys() == known.keys()
        and own["__doc__"] is None
        and type(own["__dict__"]) is GetSetDescriptorType
        and own["__dict__"].__objclass__ is cls
        and type(own["__new__"]) is staticmethod
        and _is_like(own["__new__"].__func__, _KNOWN.__new__)
        and _is_like(own["__call__"], _KNOWN.__call__)
    )


def is_numel(value: Any) -> bool:
    """Tells whether a value is what Thunder has for the number of a tensor's elements."""
    return is_numel_class(type(value))


def _is_like(function: Any, known: Any) -> bool:
    """Tells whether a function is one of Thunder's class that does the same as one of ours."""
    return (
        type(function) is FunctionType
        and function.__globals__ is vars(sys.modules[_MODULE])
        and function.__builtins__ is vars(builtins)  # type: ignore[attr-defined]
        and function.__name__ == known.__name__
        and function.__qualname__ == f"{_PLACE}.{known.__name__}"
        and function.__module__ == _MODULE
        and all(getattr(function, name) is None for name in _UNSET)
        and not any(getattr(function, name) for name in _EMPTY)
        and _is_same(function.__code__, known.__code__)
    )


def _is_same(code: CodeType, known: CodeType) -> bool:
    """Tells whether two codes differ in nothing but the places where they are written."""
    return known == code.replace(co_firstlineno=known.co_firstlineno, co_linetable=known.co_linetable)
