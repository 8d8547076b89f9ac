"""What Thunder puts around the functions that it compiles of traces, and what is in there.

Each of them runs without gradients and without autocast. To see to that takes two Python functions and an object, and
four settings of autocast, before and behind each. Whoever calls several in a row sees to it once.

A backward function empties the lists that it is given, which Thunder first asks whether they are of an abstract type.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import CodeType, FunctionType
from typing import Any

import torch


def find_inner(function: Callable[..., Any]) -> FunctionType | None:
    """Returns what a function of Thunder's calls without gradients and without autocast; None if it is none such.

    Of ``torch.no_grad`` and ``no_autocast`` it must have one each, in this order, and nothing else. The latter leaves
    autocast as it was when the function was made, so that must have been off.
    """
    without_grad, without_autocast = _find_codes()
    outer, middle = function, getattr(function, "__wrapped__", None)
    if _code_of(outer) is not without_grad or _code_of(middle) is not without_autocast:
        return None
    clone, around = (_cell(outer, name) for name in ("ctx_factory", "func"))
    if around is not middle or type(getattr(clone, "__self__", None)) is not torch.no_grad:
        return None
    inner: Any = _cell(middle, "fn")
    was_off = not any(_cell(middle, name) for name in ("prev_cpu", "prev"))
    return inner if was_off and isinstance(inner, FunctionType) else None


def with_quick_clearing(function: FunctionType) -> FunctionType:
    """Returns the same function, in which what empties a list asks no more than whether it is one."""
    from fusioncache.thunder_adapter.accelerator_api import _clear_mutable_collection_prim_impl as own

    names = {name: value for name, value in function.__globals__.items() if value is own}
    if not names:
        return function

    def clear(collection: Any) -> None:
        if type(collection) is list:
            collection.clear()
        else:
            own(collection)

    known = {**function.__globals__, **dict.fromkeys(names, clear)}
    return FunctionType(function.__code__, known, function.__name__, function.__defaults__, function.__closure__)


@cache
def _find_codes() -> tuple[CodeType, CodeType]:
    from fusioncache.thunder_adapter.api import no_autocast

    def nothing() -> None:
        pass

    return torch.no_grad()(nothing).__code__, no_autocast(nothing).__code__


def _code_of(function: Any) -> CodeType | None:
    return getattr(function, "__code__", None)


def _cell(function: Any, name: str) -> Any:
    names = function.__code__.co_freevars
    return function.__closure__[names.index(name)].cell_contents
