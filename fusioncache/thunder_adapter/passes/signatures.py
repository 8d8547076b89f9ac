"""Arguments bound to parameters as the function's code has them, where Thunder builds a signature in every call."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from types import FunctionType
from typing import Any

# Attributes by which a function says that its signature is another one than that of its code.
_OTHERWISE = frozenset({"__signature__", "_partialmethod", "__partialmethod__"})
_ANYTHING = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS


def shorten_normalize(original: Callable[..., Any]) -> Callable[..., Any]:
    """Puts arguments into the order of the parameters, with the defaults of those that were not given."""
    from fusioncache.thunder_adapter.api import Symbol

    @wraps(original)
    def normalize(self: Any, *args: Any, **kwargs: Any) -> Any:
        meta = self.meta
        if type(meta) is Symbol and _takes_anything(vars(Symbol)["__call__"]):
            return args, kwargs
        function = _find_function(meta)
        bound = None if function is None else _bind(function, args, kwargs)
        return original(self, *args, **kwargs) if bound is None else bound

    return normalize


def _takes_anything(method: Any) -> bool:
    function = _find_function(method)
    code = function and function.__code__
    return (
        code is not None and code.co_flags & _ANYTHING == _ANYTHING and code.co_argcount == 1 > code.co_kwonlyargcount
    )


def _find_function(function: Any) -> FunctionType | None:
    """Returns the function whose parameters ``inspect`` takes for those of this one; None if that is not so plain."""
    while type(function) is FunctionType:
        attributes = vars(function)
        if not attributes:
            return function
        if not _OTHERWISE.isdisjoint(attributes):
            return None
        if "__wrapped__" not in attributes:
            return function
        function = attributes["__wrapped__"]
    return None


def _bind(function: FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Returns positional and named arguments with all defaults; None if an error is to be raised, or for rare cases."""
    code = function.__code__
    count = code.co_argcount
    if code.co_flags & inspect.CO_VARKEYWORDS:
        return None
    given, rest = dict(kwargs), args[count:]
    if rest and not code.co_flags & inspect.CO_VARARGS:
        return None
    positional = list(args[:count])
    names, defaults = code.co_varnames, function.__defaults__ or ()
    for index in range(len(positional), count):
        if index >= code.co_posonlyargcount and names[index] in given:
            positional.append(given.pop(names[index]))
        elif index >= count - len(defaults):
            positional.append(defaults[index - count])
        else:
            return None
    named, of_named = {}, function.__kwdefaults__ or {}
    for name in names[count : count + code.co_kwonlyargcount]:
        if name in given:
            named[name] = given.pop(name)
        elif name in of_named:
            named[name] = of_named[name]
        else:
            return None
    return None if given else ((*positional, *rest), named)
