"""Shortcuts for calls: frames, small functions of Thunder, binary operations, and functions that only dispatch.

To merge dicts or call a function, the interpreter interprets a small Python function of its own. Each ``Native`` has
the same effect on the wrapped values, and on the items of tuples that pass the interpreter's stack. It returns None,
before any side effect, where it does not apply.

Each method of a tensor first checks whether its arguments are distributed tensors. For that Thunder interprets its
``tree_flatten``, which checks for 30 types. If all arguments are plain, the shortcut starts the frame at its final
call. The frame still exists, for source lines, errors, and the called function. Lookups that the frame skips must have
been made before, wherever their wrappers would outlive it. Other code that meets the same object gets the existing
wrapper, and with it the origin from which the prologue unpacks the object.
"""

from __future__ import annotations

import dis
import functools
import inspect
import operator
import sys
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, update_wrapper, wraps
from inspect import unwrap
from types import CodeType, FunctionType, MethodType, ModuleType, NoneType, SimpleNamespace
from typing import Any

from thunder.core import interpreter

from fusioncache.process.warning import logger
from fusioncache.thunder_adapter.api import Symbol, TensorProxy
from fusioncache.thunder_adapter.installation import find_known
from fusioncache.thunder_adapter.shortcuts.values import (
    call_method,
    find_function,
    is_wrapped,
    look_up_builtins,
    needs_every_step,
    pass_stack,
    wrap_globals,
)

_MOST_CODE_OBJECTS = 4096


def cache_instructions(original: ModuleType) -> ModuleType:
    """Returns a copy of the module ``dis`` that decodes each code object once, because the same ones run repeatedly."""

    @lru_cache(maxsize=_MOST_CODE_OBJECTS)
    def get_instructions(code: Any) -> tuple[Any, ...]:
        return tuple(original.get_instructions(code))

    copy = ModuleType(original.__name__, original.__doc__)
    copy.__dict__.update(vars(original), get_instructions=get_instructions)
    return copy


def describe_one_frame(original: Callable[..., None]) -> Callable[..., None]:
    """Returns a function that describes only the frame that Thunder reads, and not the whole stack as Python would.

    Python would search all modules for the source of each frame: 40 ms under thirty frames.
    """

    def stack() -> Mapping[int, inspect.FrameInfo]:
        frame = sys._getframe(3)  # ``inspect.stack`` counts from the caller of this function, which is 1 here
        found = inspect.getframeinfo(frame)
        return {2: inspect.FrameInfo(frame, *found, positions=found.positions)}

    names = {**original.__globals__, "inspect": SimpleNamespace(stack=stack)}
    return update_wrapper(FunctionType(original.__code__, names), original)


_CALLED = (("thunder.core.pytree", "tree_flatten"), ("optree", "tree_flatten"), ("torch.distributed", "is_available"))
"""The functions that the skipped code calls: module and name."""

_BUILTINS = (
    *("Ellipsis", "all", "bool", "complex", "dict", "filter", "float", "getattr", "hasattr", "int", "isinstance"),
    *("len", "list", "map", "next", "object", "slice", "str", "tuple", "type"),
)
"""The builtins that the skipped code looks up."""

_ATTRIBUTES: Mapping[str, tuple[str, ...]] = {
    "torch": (
        *("Size", "_C", "__dict__", "_subclasses", "autograd", "device", "distributed", "dtype", "finfo"),
        *("memory_format", "types"),
    ),
    "torch._subclasses": ("__dict__", "fake_tensor"),
    "torch._subclasses.fake_tensor": ("FakeTensor", "__dict__"),
    "torch.autograd": ("__dict__", "function"),
    "torch.autograd.function": ("FunctionCtx", "__dict__"),
    "torch.types": ("__dict__", "py_sym_types"),
    "torch.distributed": ("__dict__", "_tensor", "is_available"),
    "torch.distributed._tensor": ("DTensor", "__dict__"),
    "thunder.core.dtypes": ("__dict__", "bool_", "floating", "signedinteger"),
    "thunder.core.devices": ("Device", "__dict__"),
    "optree": ("__dict__", "tree_flatten"),
    "optree._C": ("__dict__", "flatten"),
}
"""The attributes that the skipped code looks up in modules, by module name."""

_GLOBALS: Mapping[str, tuple[str, ...]] = {
    "torch.distributed": ("__builtins__", "torch"),
    "thunder.core.pytree": ("FunctionType", "__builtins__", "devices", "dtypes", "immutable_list", "optree", "torch"),
    "optree.ops": ("_C",),
}
"""The globals that the skipped code looks up in functions of modules, by module name."""

_PLAIN = (bool, int, float, str, NoneType)


def _own(module: str, name: str) -> Any:
    """Returns the original function of a module, also where a shortcut replaces it."""
    return unwrap(vars(sys.modules[module])[name])


def shorten_resume(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a handler of RESUME that starts the dispatcher of a tensor's method at its final call."""
    from thunder.torch.experimental import dtensor_torch_and_prims

    constants = dtensor_torch_and_prims.dispatch_to_impl.__code__.co_consts
    (wrapper,) = (each for each in constants if isinstance(each, CodeType) and each.co_name == "wrapper")
    distance, can_skip = _measure_skip(wrapper), _make_skip_check()

    @wraps(original)
    def resume_handler(inst: Any, /, co: Any, frame: Any, **kwargs: Any) -> Any:
        if co is wrapper and inst.arg == 0 and can_skip(frame):
            return distance
        return original(inst, co=co, frame=frame, **kwargs)

    return resume_handler


def _measure_skip(code: CodeType) -> int:
    """Returns the jump distance, in code units, from the start of a function to its last statement."""
    instructions = list(dis.get_instructions(code))
    begin = next(index for index, each in enumerate(instructions) if each.opname == "RESUME")
    *_, (last, _) = dis.findlinestarts(code)
    return (last - instructions[begin + 1].offset) // 2


def _make_skip_check() -> Callable[[Any], bool]:
    """Returns a function that is True if a dispatcher's frame ends in the operation for a single device."""
    flatten = _own("thunder.core.pytree", "tree_flatten")
    visited = _list_visited()

    def can_skip(frame: Any) -> bool:
        args, kwargs = frame.localsplus[:2]
        if not (is_wrapped(args, tuple) and is_wrapped(kwargs, dict) and not kwargs.value) or needs_every_step():
            return False
        kinds = set(map(type, args.value))
        if TensorProxy not in kinds or not kinds.issubset((TensorProxy, *_PLAIN)):
            return False
        names = frame.globals
        if unwrap(names.value.get("tree_flatten")) is not flatten or not _all_looked_up(visited):
            return False
        interpreter.globals_lookup(names, interpreter.wrap_const("tree_flatten"))
        look_up_builtins(names, "list", "filter", "map", "all")
        return True

    return can_skip


_Visited = Sequence[tuple[Any, str, tuple[str, ...]]]


def _list_visited() -> _Visited:
    """Returns the lookups of the skipped code: an object, the attribute of its wrapper, and the names looked up."""
    visited: list[tuple[Any, str, tuple[str, ...]]] = [(interpreter.builtins_dict, "item_wrappers", _BUILTINS)]
    visited += [(sys.modules[name], "attribute_wrappers", names) for name, names in _ATTRIBUTES.items()]
    visited += [(vars(sys.modules[name]), "item_wrappers", names) for name, names in _GLOBALS.items()]
    visited += [(_own(module, name), "attribute_wrappers", ("__globals__",)) for module, name in _CALLED]
    return visited


def _all_looked_up(visited: _Visited) -> bool:
    """True if all lookups were made in objects that have a wrapper. New wrappers would not outlive the skipped code."""
    known = interpreter.get_interpreterruntimectx()._known_wrappers
    for value, kind, names in visited:
        reference = known.get(id(value))
        wrapper = reference and reference[0]()
        if wrapper is not None and not all(map(getattr(wrapper, kind).__contains__, names)):
            return False
    return True


@dataclass(frozen=True, slots=True)
class Native:
    """A native equivalent of a small function of Thunder, which replaces its interpretation.

    Attributes:
        owner: the function that defines the small one, as the table names it.
        name: the name of the small one in its owner. All of this name do the same.
        do: does the same to wrapped values, or returns None and does nothing.
    """

    owner: str
    name: str
    do: Callable[..., Any]

    def list_code(self, known: Mapping[str, Any]) -> list[CodeType]:
        """Returns the code objects of the small function; none if its owner's source is not known."""
        if self.owner not in known:
            logger.info("tracing interprets %s of %s, which has another source", self.name, self.owner)
            return []
        code = known[self.owner].__code__
        return [each for each in code.co_consts if isinstance(each, CodeType) and each.co_name == self.name]


def list_natives() -> tuple[Native, ...]:
    """Returns all natives."""
    module = "thunder.core.interpreter"
    return (
        Native(f"{module}:_default_opcode_handler_map[DICT_MERGE]", "<lambda>", merge),
        Native(f"{module}:_call_dispatch", "_impl", call_bound_method),
        Native(f"{module}:partial_call_lookaside", "partial_call_impl", call_partial),
    )


def shorten_calls(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns an ``_interpret_call`` that runs natives in place of small functions of Thunder."""
    get_compile_context, get_context = interpreter.get_interpretercompilectx, interpreter.get_interpreterruntimectx
    values = interpreter.WrappedValue, interpreter.INTERPRETER_SIGNALS
    owners = find_known("small functions")
    known = [(code, each.do) for each in list_natives() for code in each.list_code(owners)]
    # By address, because hashing a code object takes time in proportion to its size. The list keeps it alive.
    natives: Mapping[int, Callable[..., Any]] = {id(code): do for code, do in known}

    @wraps(original)
    def _interpret_call(fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        if needs_every_step():
            return original(fn, *args, **kwargs)
        if type(fn) is FunctionType:
            do = natives.get(id(fn.__code__))
            if do is not None:
                result = do(fn, *args, **kwargs)
                if result is not None:
                    return result
        # The rest is the original's, without its history. A call of the original would deepen Python's stack.
        result = interpreter._call_dispatch(get_compile_context(), get_context(), fn, *args, **kwargs)
        assert isinstance(result, values), f"return {result} unexpected calling {interpreter.unwrap(fn)}"
        return result

    _interpret_call.natives = known  # type: ignore[attr-defined]
    return _interpret_call


def shorten_arguments(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that takes each item of a call's ``*args``, and finds the subscript lookaside only once."""

    @wraps(original)
    def wrap_args_from_list(lst: Any) -> Any:
        if not (is_wrapped(lst, list, tuple) and lst.value) or needs_every_step():
            return original(lst)
        pass_stack(lst)
        take = find_function(type(lst.value).__getitem__)
        return [pass_stack(take(lst, interpreter.wrap_const(index))) for index in range(len(lst.value))]

    return wrap_args_from_list


def merge(_: Any, one: Any, other: Any) -> Any:
    """Updates the second dict with the first, as a call does for each ``**kwargs``."""
    if not (is_wrapped(one, dict) and is_wrapped(other, dict)):
        return None
    return call_method("update", other, one)


def call_bound_method(own: Any, method: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls the function of a bound method with its ``__self__`` and the arguments."""
    if not (is_wrapped(method, MethodType) and _asks_for_no_frame(method.value.__func__)):
        return None
    names = wrap_globals(own)
    function = _load(method, "__func__")
    result = _call(function, (_load(method, "__self__"), *args), kwargs)
    del names
    return result


def call_partial(own: Any, partial: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls the function of a ``functools.partial`` without keywords: with its arguments, then those of the call."""
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
    """True if a function does the same from any calling frame, unlike ``super``, ``locals`` or ``namedtuple``."""
    return type(function) is Symbol or (type(function) is FunctionType and function is not namedtuple)


def _load(value: Any, name: str) -> Any:
    return pass_stack(find_function(getattr)(value, interpreter.wrap_const(name)))


def _call(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    for value in (*kwargs.values(), *args):
        pass_stack(value)
    return interpreter._interpret_call(function, *args, **kwargs)


_NUMBERS = (bool, int, float, complex)
OPERATIONS: tuple[tuple[str, str, Callable[[Any, Any], Any]], ...] = (
    ("+", "add", operator.add),
    ("&", "and", operator.and_),
    ("//", "floordiv", operator.floordiv),
    ("<<", "lshift", operator.lshift),
    ("@", "matmul", operator.matmul),
    ("*", "mul", operator.mul),
    ("%", "mod", operator.mod),
    ("|", "or", operator.or_),
    ("**", "pow", operator.pow),
    (">>", "rshift", operator.rshift),
    ("-", "sub", operator.sub),
    ("/", "truediv", operator.truediv),
    ("^", "xor", operator.xor),
)
"""Operators in the order of their numbers in instructions. An in-place one is higher by the length of this table."""


def shorten_binary_operation(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a ``_binary_op`` that computes with numbers directly, and calls the tensor method that Python would."""
    raised = interpreter.INTERPRETER_SIGNALS.EXCEPTION_RAISED

    @wraps(original)
    def _binary_op(stack: Any, op: Any, a: Any, b: Any) -> Any:
        if not (is_wrapped(a, TensorProxy, *_NUMBERS) and is_wrapped(b, TensorProxy, *_NUMBERS)):
            return original(stack, op, a, b)
        if needs_every_step():
            return original(stack, op, a, b)
        names = wrap_globals(original)
        if is_wrapped(a, TensorProxy) or is_wrapped(b, TensorProxy):
            result = call_method_of_tensor(op.value, a, b, names)
        else:
            result = _compute(op.value, a.value, b.value)
            if result is None:
                return original(stack, op, a, b)
            look_up_builtins(names, "hasattr", "type", "getattr", "NotImplemented")
        if result is raised:
            return result
        stack.append(result)
        return None

    return _binary_op


def _compute(number: int, a: Any, b: Any) -> Any:
    """Returns the result for two numbers; None if it raises an error, because Thunder has its own messages."""
    with suppress(Exception):
        return OPERATIONS[number % len(OPERATIONS)][2](a, b)
    return None


def call_method_of_tensor(number: int, a: Any, b: Any, names: Any) -> Any:
    """Returns the unwrapped result of the first method that supports the operation; or the signal of an error."""
    look_up_builtins(names, "hasattr", "type")
    for key, first, second in _list_methods(number, a, b):
        is_in_place, method = key.startswith("__i"), getattr(type(first.value), key, None)
        result = None
        if method is not None:
            look_up_builtins(names, "getattr")
            result = interpreter._interpret_call(method, first, second)
            if result is interpreter.INTERPRETER_SIGNALS.EXCEPTION_RAISED:
                return result
        if (method is None) is is_in_place:
            look_up_builtins(names, "NotImplemented")
        if result is not None and result.value is not NotImplemented:
            return result.value
    look_up_builtins(names, "TypeError")
    symbol = OPERATIONS[number % len(OPERATIONS)][0] + "=" * (number // len(OPERATIONS))
    kinds = f"'{type(a.value)}' and '{type(b.value)}'"
    return interpreter.do_raise(TypeError(f"unsupported operand type(s) for {symbol}: {kinds}"))


def _list_methods(number: int, a: Any, b: Any) -> list[tuple[str, Any, Any]]:
    """Returns the names of the methods that Python tries for an operation, in order, each with its arguments."""
    name = OPERATIONS[number % len(OPERATIONS)][1]
    calls = [(f"__{name}__", a, b), (f"__r{name}__", b, a)]
    if number >= len(OPERATIONS):
        calls.insert(0, (f"__i{name}__", a, b))
    return calls
