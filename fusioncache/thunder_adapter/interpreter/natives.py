"""Small functions of Thunder's own, done natively instead of interpreted.

Where the interpreter has to subscript, merge, or call something, it writes a small Python function that does so, and
interprets that. Each function here does to the wrapped values what interpreting one of these comes down to, the items
of tuples that pass the interpreter's stack included, and returns None where it does not know, before anything is done.
"""

from __future__ import annotations

import functools
import logging
from collections import namedtuple
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from types import CodeType, FunctionType, MethodType
from typing import Any

from fusioncache.thunder_adapter.installation import find_known
from fusioncache.thunder_adapter.interpreter.steps import wants_every_step
from fusioncache.thunder_adapter.interpreter.wrapped import (
    call_method,
    find_function,
    is_wrapped,
    look_up_builtins,
    pass_stack,
    wrap_globals,
)

logger = logging.getLogger("fusioncache")


@dataclass(frozen=True, slots=True)
class Native:
    """What a small function of Thunder's comes down to that the interpreter would run.

    Attributes:
        owner: the function that the small one is written in, as the table names it.
        name: the name of the small one in it. All of this name do the same.
        do: does the same to wrapped values, or returns None and does nothing.
    """

    owner: str
    name: str
    do: Callable[..., Any]

    def list_code(self, known: Mapping[str, Any]) -> list[CodeType]:
        """Returns the code of the small function; nothing if its owner is not among those that are known."""
        if self.owner not in known:
            logger.info("tracing interprets %s of %s, which has another source", self.name, self.owner)
            return []
        code = known[self.owner].__code__
        return [each for each in code.co_consts if isinstance(each, CodeType) and each.co_name == self.name]


def list_natives() -> tuple[Native, ...]:
    """Returns all of them."""
    interpreter = "thunder.core.interpreter"
    handlers, mapping = f"{interpreter}:_default_opcode_handler_map", f"{interpreter}:MutMappingWrapperMethods"
    return (
        Native(f"{interpreter}:wrap_kwargs_from_dict", "<lambda>", subscript),
        Native(f"{interpreter}:_setup_frame_and_run_python_function", "<lambda>", subscript),
        Native(f"{handlers}[LIST_EXTEND]", "<lambda>", extend),
        Native(f"{handlers}[DICT_MERGE]", "<lambda>", merge),
        Native(f"{mapping}.update", "impl_other_keys", copy_items),
        Native(f"{mapping}.__or__", "impl", join),
        Native(f"{interpreter}:_call_dispatch", "_impl", call_bound_method),
        Native(f"{interpreter}:partial_call_lookaside", "partial_call_impl", call_partial),
    )


def shorten_calls(original: Callable[..., Any]) -> Callable[..., Any]:
    """Does what a small function of Thunder's own would do, where Thunder interprets it."""
    from thunder.core import interpreter

    get_compile_context, get_context = interpreter.get_interpretercompilectx, interpreter.get_interpreterruntimectx
    values = interpreter.WrappedValue, interpreter.INTERPRETER_SIGNALS
    owners = find_known("small functions")
    known = [(code, each.do) for each in list_natives() for code in each.list_code(owners)]
    # By address, as to hash code takes as long as the code is. The list keeps it alive.
    natives: Mapping[int, Callable[..., Any]] = {id(code): do for code, do in known}

    @wraps(original)
    def _interpret_call(fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        if wants_every_step():
            return original(fn, *args, **kwargs)
        if type(fn) is FunctionType:
            do = natives.get(id(fn.__code__))
            if do is not None:
                result = do(fn, *args, **kwargs)
                if result is not None:
                    return result
        # The rest is the original's, without recording. To call it would make the stack of Python deeper.
        result = interpreter._call_dispatch(get_compile_context(), get_context(), fn, *args, **kwargs)
        assert isinstance(result, values), f"return {result} unexpected calling {interpreter.unwrap(fn)}"
        return result

    _interpret_call.natives = known  # type: ignore[attr-defined]
    return _interpret_call


def shorten_arguments(original: Callable[..., Any]) -> Callable[..., Any]:
    """Takes each item of ``*args`` of a call, looking only once for what subscripts a tuple."""
    from thunder.core.interpreter import wrap_const

    @wraps(original)
    def wrap_args_from_list(lst: Any) -> Any:
        if not (is_wrapped(lst, list, tuple) and lst.value) or wants_every_step():
            return original(lst)
        pass_stack(lst)
        take = find_function(type(lst.value).__getitem__)
        return [pass_stack(take(lst, wrap_const(index))) for index in range(len(lst.value))]

    return wrap_args_from_list


def subscript(_: Any, container: Any, key: Any) -> Any:
    """Subscripts a plain container with a key that it has."""
    if not _has(container, key):
        return None
    pass_stack(container)
    return pass_stack(call_method("__getitem__", container, key))


def _has(container: Any, key: Any) -> bool:
    if is_wrapped(container, dict) and is_wrapped(key, str):
        return key.value in container.value
    if is_wrapped(container, list, tuple) and is_wrapped(key, int):
        return 0 <= key.value < len(container.value)
    return False


def extend(_: Any, one: Any, other: Any) -> Any:
    """Extends a list by a plain container, as a call does for each ``*args``."""
    if not (is_wrapped(one, list) and is_wrapped(other, list, tuple)):
        return None
    return call_method("extend", one, pass_stack(other))


def merge(_: Any, one: Any, other: Any) -> Any:
    """Updates the second of two dicts by the first, as a call does for each ``**kwargs``."""
    if not (is_wrapped(one, dict) and is_wrapped(other, dict)):
        return None
    return call_method("update", other, one)


def copy_items(own: Any, one: Any, other: Any) -> Any:
    """Sets in one dict all items of another."""
    from thunder.core.interpreter import wrap_const

    if not (_has_names(one) and _has_names(other)) or one.value is other.value:
        return None
    names = wrap_globals(own)
    look_up_builtins(names, "hasattr", "setattr", "next")
    other.track_items()
    for name in list(other.value):
        key = other.key_wrappers[name]
        call_method("__setitem__", one, key, pass_stack(call_method("__getitem__", other, key)))
    return wrap_const(None)


def _has_names(container: Any) -> bool:
    return is_wrapped(container, dict) and all(type(each) is str for each in container.value)


def join(own: Any, one: Any, other: Any) -> Any:
    """Makes the dict of the items of two."""
    if not (_has_names(one) and _has_names(other)):
        return None
    names = wrap_globals(own)
    look_up_builtins(names, "isinstance", "dict")
    new = call_method("copy", one)
    call_method("update", new, other)
    return new


def call_bound_method(own: Any, method: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls the function of a bound method with what it is bound to."""
    if not (is_wrapped(method, MethodType) and _asks_for_no_frame(method.value.__func__)):
        return None
    names = wrap_globals(own)
    function = _load(method, "__func__")
    result = _call(function, (_load(method, "__self__"), *args), kwargs)
    del names
    return result


def call_partial(own: Any, partial: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls the function of a ``functools.partial`` that has no keywords with its arguments and those of the call."""
    if not is_wrapped(partial, functools.partial) or partial.value.keywords:
        return None
    if not _asks_for_no_frame(partial.value.func):
        return None
    names = wrap_globals(own)
    function, first = _load(partial, "func"), _load(partial, "args")
    _load(partial, "keywords")
    look_up_builtins(names, "hasattr", "type", "getattr", "isinstance", "dict", "NotImplemented")
    if kwargs:
        look_up_builtins(names, "setattr", "next")
    result = _call(function, (*first.item_wrappers, *args), kwargs)
    del names
    return result


def _asks_for_no_frame(function: Any) -> bool:
    """Tells whether this is called the same from any frame, as are not ``super``, ``locals``, or ``namedtuple``."""
    from fusioncache.thunder_adapter.api import Symbol

    return type(function) is Symbol or (type(function) is FunctionType and function is not namedtuple)


def _load(value: Any, name: str) -> Any:
    from thunder.core.interpreter import wrap_const

    return pass_stack(find_function(getattr)(value, wrap_const(name)))


def _call(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    from thunder.core import interpreter

    for value in (*kwargs.values(), *args):
        pass_stack(value)
    return interpreter._interpret_call(function, *args, **kwargs)
