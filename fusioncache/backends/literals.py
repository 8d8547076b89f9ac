"""Thunder's literals as typed constants, and the way back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache, lru_cache
from typing import Any

from fusioncache.ir import Arg, Const, Declined, Scope

HERE = Const("device", "cuda")
"""The GPU that the inputs lie on, whichever it is: the same region on another one is the same template."""

_PYTHON_TYPES = {"bool": bool, "int": int, "float": float, "complex": complex}
_VALUE_OF: Mapping[type, Callable[[Any], Any]] = {
    int: int.__int__,
    float: float.__float__,
    complex: complex.__complex__,
    str: str.__str__,
}


def to_plain(value: Any) -> Any:
    """Returns a number or a text of a derived class as one of Python's own class; anything else as it is.

    The value is the one that torch reads: it calls no method of the derived class.
    """
    kind: type = type(value)
    value_of = _find_value_of(kind)
    return value if value_of is None else value_of(value)


@lru_cache(maxsize=256)
def _find_value_of(kind: type) -> Callable[[Any], Any] | None:
    """Returns what makes a value of a derived class one of Python's own; None for other classes."""
    if kind in _VALUE_OF or kind is bool:
        return None
    return next((value_of for base, value_of in _VALUE_OF.items() if issubclass(kind, base)), None)


def encode(value: Any) -> Const:
    """Encodes a literal of a bound symbol as a constant.

    Raises:
        Declined: if the literal is of a type that is not understood.
    """
    if value is None:
        return Const("none", "None")
    if type(value) in (bool, int, str):
        return Const(type(value).__name__, str(value))
    if type(value) is float:
        return Const("float", value.hex())
    # Only where they are needed, as an import takes longer than all of the above.
    import torch

    from fusioncache.thunder_adapter.api import Device, dtypes

    if type(value) is complex:
        return Const("complex", f"{value.real.hex()} {value.imag.hex()}")
    if isinstance(value, dtypes.dtype):
        return Const("dtype", value.full_name)
    if isinstance(value, torch.dtype):
        return Const("torch.dtype", str(value).removeprefix("torch."))
    if isinstance(value, Device):
        return Const("device", value.device_str())
    if isinstance(value, type) and value.__name__ in _PYTHON_TYPES:
        return Const("type", value.__name__)
    raise Declined(f"literal of type {type(value).__name__}", Scope.REGION)


def is_here(arg: Arg) -> bool:
    """Tells whether an argument names the GPU that the inputs lie on."""
    return any(map(is_here, arg)) if isinstance(arg, tuple) else arg == HERE


def fixed_gpus(arg: Arg) -> Iterator[int]:
    """Lists each GPU that an argument names by its number."""
    if isinstance(arg, tuple):
        for item in arg:
            yield from fixed_gpus(item)
    elif isinstance(arg, Const) and arg.kind == HERE.kind and arg.text.startswith(f"{HERE.text}:"):
        yield int(arg.text.removeprefix(f"{HERE.text}:"))


def decode(arg: Arg, value_of: Callable[[int], Any], gpu: int = 0) -> Any:
    """Decodes a constant to Thunder's literal, a value to ``value_of(index)``, a tuple to a tuple of these.

    Args:
        arg: of an op.
        value_of: gives the value with this index.
        gpu: the number of the one that inputs lie on.
    """
    import torch

    from fusioncache.thunder_adapter.api import Device

    if isinstance(arg, tuple):
        return tuple(decode(item, value_of, gpu) for item in arg)
    if not isinstance(arg, Const):
        return value_of(arg.index)
    match arg.kind:
        case "none":
            return None
        case "bool":
            return arg.text == "True"
        case "int":
            return int(arg.text)
        case "float":
            return float.fromhex(arg.text)
        case "complex":
            return complex(*map(float.fromhex, arg.text.split()))
        case "str":
            return arg.text
        case "dtype":
            return thunder_dtype(arg.text)
        case "torch.dtype":
            return getattr(torch, arg.text)
        case "device":
            return Device(arg.text if arg != HERE else f"{arg.text}:{gpu}")
        case "type":
            return _PYTHON_TYPES[arg.text]
    raise ValueError(f"unknown kind of constant: {arg.kind}")


@cache
def torch_dtype(full_name: str) -> Any:
    """Returns torch's dtype for Thunder's with this full name."""
    from fusioncache.thunder_adapter.api import to_torch_dtype

    return to_torch_dtype(thunder_dtype(full_name))


@cache
def thunder_dtype(full_name: str) -> Any:
    """Returns Thunder's dtype with this full name, such as ``float32`` or, weak, ``float32_``."""
    from fusioncache.thunder_adapter.api import dtypes

    return next(dtype for dtype in dtypes.all_dtypes if dtype.full_name == full_name)
