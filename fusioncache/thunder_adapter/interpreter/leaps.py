"""Functions of Thunder's that only choose which function to call, begun where they call it.

Each method of a tensor is first asked whether its arguments are distributed tensors. For that Thunder interprets its
own ``tree_flatten``, which asks for 30 types. Where all is plain to see, the frame is begun at the call at the end: it
is there as before, for source lines, errors, and what is called.

What would have been looked up on the way must have been already, wherever it would stay: whoever meets the same object
elsewhere is given the wrapper that is there, and with it where the prologue takes it from.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from inspect import unwrap
from types import CodeType, NoneType
from typing import Any

from fusioncache.thunder_adapter.interpreter.steps import wants_every_step
from fusioncache.thunder_adapter.interpreter.wrapped import is_wrapped, look_up_builtins

_CALLED = (("thunder.core.pytree", "tree_flatten"), ("optree", "tree_flatten"), ("torch.distributed", "is_available"))
"""The functions that are called on the way: module and name."""

_BUILTINS = (
    *("Ellipsis", "all", "bool", "complex", "dict", "filter", "float", "getattr", "hasattr", "int", "isinstance"),
    *("len", "list", "map", "next", "object", "slice", "str", "tuple", "type"),
)
"""The builtins that are looked up."""

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
"""What is looked up in modules, by their names."""

_GLOBALS: Mapping[str, tuple[str, ...]] = {
    "torch.distributed": ("__builtins__", "torch"),
    "thunder.core.pytree": ("FunctionType", "__builtins__", "devices", "dtypes", "immutable_list", "optree", "torch"),
    "optree.ops": ("_C",),
}
"""What is looked up as a global in functions of modules, by their names."""

_PLAIN = (bool, int, float, str, NoneType)


def _own(module: str, name: str) -> Any:
    """Returns a function of a module, also where a shortcut stands in for it."""
    return unwrap(vars(sys.modules[module])[name])


def shorten_resume(original: Callable[..., Any]) -> Callable[..., Any]:
    """Begins what chooses an operation for a method of a tensor at the call of the operation."""
    from thunder.torch.experimental import dtensor_torch_and_prims

    constants = dtensor_torch_and_prims.dispatch_to_impl.__code__.co_consts
    (wrapper,) = (each for each in constants if isinstance(each, CodeType) and each.co_name == "wrapper")
    distance, may_leap = _measure_leap(wrapper), _make_judge()

    @wraps(original)
    def resume_handler(inst: Any, /, co: Any, frame: Any, **kwargs: Any) -> Any:
        if co is wrapper and inst.arg == 0 and may_leap(frame):
            return distance
        return original(inst, co=co, frame=frame, **kwargs)

    return resume_handler


def _measure_leap(code: CodeType) -> int:
    """Returns how far it is, as jumps are measured, from the begin of a function to its last statement."""
    instructions = list(dis.get_instructions(code))
    begin = next(index for index, each in enumerate(instructions) if each.opname == "RESUME")
    *_, (last, _) = dis.findlinestarts(code)
    return (last - instructions[begin + 1].offset) // 2


def _make_judge() -> Callable[[Any], bool]:
    """Makes a function that tells whether a frame that chooses an operation comes to that for one device."""
    from thunder.core import interpreter

    from fusioncache.thunder_adapter.api import TensorProxy

    flatten = _own("thunder.core.pytree", "tree_flatten")
    visited = _list_visited()

    def may_leap(frame: Any) -> bool:
        args, kwargs = frame.localsplus[:2]
        if not (is_wrapped(args, tuple) and is_wrapped(kwargs, dict) and not kwargs.value) or wants_every_step():
            return False
        kinds = set(map(type, args.value))
        if TensorProxy not in kinds or not kinds.issubset((TensorProxy, *_PLAIN)):
            return False
        names = frame.globals
        if unwrap(names.value.get("tree_flatten")) is not flatten or not _was_here(visited):
            return False
        interpreter.globals_lookup(names, interpreter.wrap_const("tree_flatten"))
        look_up_builtins(names, "list", "filter", "map", "all")
        return True

    return may_leap


_Visited = Sequence[tuple[Any, str, tuple[str, ...]]]


def _list_visited() -> _Visited:
    """Lists what is looked into on the way: an object, the attribute of its wrapper, and the names looked up in it."""
    from thunder.core import interpreter

    visited: list[tuple[Any, str, tuple[str, ...]]] = [(interpreter.builtins_dict, "item_wrappers", _BUILTINS)]
    visited += [(sys.modules[name], "attribute_wrappers", names) for name, names in _ATTRIBUTES.items()]
    visited += [(vars(sys.modules[name]), "item_wrappers", names) for name, names in _GLOBALS.items()]
    visited += [(_own(module, name), "attribute_wrappers", ("__globals__",)) for module, name in _CALLED]
    return visited


def _was_here(visited: _Visited) -> bool:
    """Tells whether everything is looked up already in what has a wrapper. Other wrappers would not outlive the way."""
    from thunder.core import interpreter

    known = interpreter.get_interpreterruntimectx()._known_wrappers
    for value, kind, names in visited:
        reference = known.get(id(value))
        wrapper = reference and reference[0]()
        if wrapper is not None and not all(map(getattr(wrapper, kind).__contains__, names)):
            return False
    return True
