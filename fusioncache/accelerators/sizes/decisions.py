"""What is decided by what nobody interprets, as by the library that has a kernel or has none: questions as data.

A question says what a function of Thunder's is asked about, with expressions for sizes. So it can be asked again at
other sizes, also in another process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType, ModuleType
from typing import Any

from fusioncache.accelerators.sizes.expressions import Expression, Number, Operation, evaluate
from fusioncache.accelerators.sizes.sizes import SYMBOLIC, express

DECIDERS: Mapping[str, str] = MappingProxyType(
    {
        "_fused_sdp_choice": "thunder.executors.utils",
        "can_attend_with_cudnn": "fusioncache.accelerators.attention.executor",
    }
)
"""The functions that decide by sizes, and by what else they are asked about, each with the module that has it."""


@dataclass(frozen=True, slots=True)
class AskedTensor:
    """A tensor that something is decided about.

    Attributes:
        shape: its sizes.
        device: that it is on, as torch writes it.
        dtype: the name that its type has in torch.
        requires_grad: whether it needs a gradient.
    """

    shape: tuple[Expression, ...]
    device: str
    dtype: str
    requires_grad: bool


type Asked = AskedTensor | Expression | bool | float | None
"""What one argument of a question is."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Something that was decided.

    Attributes:
        function: decides: one of ``DECIDERS``.
        args: what it was asked about.
        answer: what it decided, as Python writes it.
    """

    function: str
    args: tuple[Asked, ...]
    answer: str

    def ask(self, numbers: Mapping[int, int]) -> str:
        """Returns what is decided where numbers have these values, by their positions.

        Raises:
            ValueError: if nobody knows who decides it.
        """
        if self.function not in DECIDERS:
            raise ValueError(f"{self.function} decides nothing")
        return str(decide(getattr(find_home(self.function), self.function), self.args, numbers))


def find_home(decider: str) -> ModuleType:
    """Returns the module of one of ``DECIDERS``, where whoever needs a decision looks it up."""
    return import_module(DECIDERS[decider])


def decide(function: Callable[..., Any], args: tuple[Asked, ...], numbers: Mapping[int, int]) -> Any:
    """Returns what a function decides where numbers have these values."""
    from fusioncache.thunder_adapter.api import TraceCtx, tracectx

    with tracectx(TraceCtx()):
        return function(*(_fill(each, numbers) for each in args))


def describe_asked(arg: Any) -> Asked:
    """Returns an argument of a question as data.

    Raises:
        TypeError: if it is of a kind that is not known.
    """
    from fusioncache.thunder_adapter.api import TensorProxy, to_torch_dtype

    if isinstance(arg, TensorProxy):
        dtype = str(to_torch_dtype(arg.dtype)).removeprefix("torch.")
        return AskedTensor(tuple(map(express, arg.shape)), arg.device.device_str(), dtype, bool(arg.requires_grad))
    if type(arg) in SYMBOLIC:
        return arg.expression
    if arg is None or type(arg) in (bool, int, float):
        return arg  # type: ignore[no-any-return]
    raise TypeError(f"something is decided about a {type(arg).__name__}")


def _fill(asked: Asked, numbers: Mapping[int, int]) -> Any:
    if isinstance(asked, AskedTensor):
        return _make_proxy(asked, numbers)
    return evaluate(asked, numbers) if isinstance(asked, Number | Operation) else asked


def _make_proxy(asked: AskedTensor, numbers: Mapping[int, int]) -> Any:
    import torch

    from fusioncache.thunder_adapter.api import TensorProxy, devices, dtypes

    return TensorProxy(
        shape=tuple(evaluate(size, numbers) for size in asked.shape),
        device=devices.to_device(asked.device),
        dtype=dtypes.to_dtype(getattr(torch, asked.dtype)),
        requires_grad=asked.requires_grad,
    )
