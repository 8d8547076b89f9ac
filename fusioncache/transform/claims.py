"""Tests whether an operation's primitives compute the same as torch's operation, by running both once.

Thunder lets torch compute an operation as a whole, and a region computes its primitives. Thunder chooses the primitives
and their dtypes. Torch may take other arguments (``3 // x`` is an operation of torch, but its first primitive,
``torch.fmod(3, x)``, is not), return another dtype, or raise an error. This shows only in a call of torch.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import Context
from numbers import Complex, Integral, Number, Real
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import _disable_current_modes

from fusioncache.backends.bound_symbols import BoundGraph, flatten, to_plain, torch_function
from fusioncache.ir.errors import Declined, Scope
from fusioncache.process.warning import log_errors, silence
from fusioncache.thunder_adapter.api import (
    Device,
    NumberProxy,
    TensorProxy,
    TraceCtx,
    devices,
    dtypes,
    no_autocast,
    tracectx,
)

_SMALL = 8
"""Integers below this may be dimensions, so their values are preserved. Larger ones are interchangeable."""
_KINDS = ((bool, bool, True), (Integral, int, 2), (Real, float, 2.5), (Complex, complex, 2 + 1j))
"""Abstract and Python types of numbers, and the value that represents each type."""
_VALUES = ((1.25, -2.5, 3.5), (3.25, 1.5, -2.25), (-2.75, 3.75, 1.0))
_NEVER_WATCH = frozenset({bool, int, float, complex, str, type(None), TensorProxy})
"""Types of most arguments. Numbers of these types are Python's own."""
_ROUNDINGS = 64
"""By how many roundings results may differ, because torch may round once where primitives round each time."""

_verdicts: dict[Hashable, bool] = {}


class _Tensor(NamedTuple):
    """Represents a tensor of any sizes."""

    dtype: Any
    rank: int


class _Literal(NamedTuple):
    """Represents a number or another literal, with its class because 1, 1.0 and True are equal."""

    kind: type
    value: Any


def agrees_with_torch(bound_symbol: Any) -> bool:
    """True if an operation's primitives return the same as Thunder's executors for torch and Python.

    Both are called with small tensors on the CPU, once in a process for each kind of arguments. An operation that needs
    specific sizes is not tried, and counts as equal. A number that records its uses is asked for its sign only if the
    sign matters.
    """
    try:
        signs = (1, -1) if any(map(_may_be_watched, bound_symbol.flat_args)) else (1,)
        verdicts = {_find_verdict(bound_symbol, sign) for sign in signs}
        return verdicts.pop() if len(verdicts) == 1 else _find_verdict(bound_symbol, None)
    except Declined as declined:
        declined.require(Scope.VALUE)
        return True


def _may_be_watched(value: Any) -> bool:
    """True if a value may be a number that records its uses."""
    if type(value) in _NEVER_WATCH:
        return False
    return isinstance(value, Number) and type(to_plain(value)) not in _NEVER_WATCH


def _find_verdict(bound_symbol: Any, sign: int | None) -> bool:
    """Returns the verdict on an operation, with this sign for numbers that may record uses; None for their own."""
    args = tuple([_generalize(value, sign) for value in bound_symbol.args])
    kwargs = tuple([(name, _generalize(value, sign)) for name, value in bound_symbol.kwargs.items()])
    key = bound_symbol.sym.id, args, kwargs
    if key not in _verdicts:
        # Neither the trace being made nor its recorder may see this.
        _verdicts[key] = Context().run(_agree, bound_symbol.sym, args, kwargs)
    return _verdicts[key]


def _generalize(value: Any, sign: int | None) -> Any:
    """Returns a representative of all arguments with the same verdict as this one.

    Raises:
        Declined: if the argument has an unusual type.
    """
    if type(value) is TensorProxy:
        return _Tensor(value.dtype, value.ndim)
    value = to_plain(value)
    if isinstance(value, NumberProxy):
        return _generalize(value.python_type(2) if value.value is None else value.value, sign)
    if isinstance(value, Number):
        return _generalize_number(value, sign)
    if isinstance(value, (tuple, list)) and not any(isinstance(item, Number) for item in value):
        return tuple(_generalize(item, sign) for item in value)
    if isinstance(value, (Device, torch.device)):
        return _Literal(Device, devices.cpu)
    if value is None or type(value) in (str, type, torch.dtype) or isinstance(value, dtypes.dtype):
        return _Literal(type(value), value)
    raise Declined(f"an argument of type {type(value).__name__}", Scope.VALUE)


def _generalize_number(value: Any, sign: int | None) -> _Literal:
    kind, like = next((kind, like) for abstract, kind, like in _KINDS if isinstance(value, abstract))
    if kind is complex:
        return _Literal(kind, like)
    if kind is bool or (type(value) is int and abs(value) < _SMALL):
        return _Literal(kind, value)
    if type(value) is float and 0 <= value < 1:  # such as a probability
        like = 0.5 if value else 0.0
    is_negative = value < 0 if sign is None or not _may_be_watched(value) else sign < 0
    return _Literal(kind, -like if is_negative else like)


def _agree(symbol: Any, args: Any, kwargs: Any) -> bool:
    try:
        trial = _Trial(symbol, args, kwargs)
    except Exception:  # the operation cannot be called with these arguments
        return True
    with _undisturbed(), log_errors("torch computes %s as a whole", symbol.name):
        expected = trial.run([trial.operation])
        return all(map(_is_like, trial.run(flatten(trial.operation)), expected))
    return False


class _Trial:
    """A call of an operation with small tensors.

    Raises:
        Exception: if the operation cannot be called with them.

    Attributes:
        operation: the bound symbol of the call.
    """

    def __init__(self, symbol: Any, args: Any, kwargs: Any):
        self._inputs: list[TensorProxy] = []
        trace = TraceCtx(None)
        with tracectx(trace):
            symbol(*self._make(args), **{name: self._make(value) for name, value in kwargs})
        (self.operation,) = trace.bound_symbols
        self._outputs = [proxy for proxy in self.operation.flat_proxy_outs if isinstance(proxy, TensorProxy)]

    def _make(self, value: Any) -> Any:
        if isinstance(value, _Literal):
            return value.value
        if not isinstance(value, _Tensor):
            return tuple(map(self._make, value))
        shape = (1,) * (value.rank - 1) + (len(_VALUES),) * (value.rank > 0)
        self._inputs.append(TensorProxy(shape=shape, device=devices.cpu, dtype=value.dtype))
        return self._inputs[-1]

    def run(self, bound_symbols: Sequence[Any]) -> Sequence[Any]:
        """Returns torch's results for these bound symbols, which lead from the call's tensors to its results."""
        function = torch_function(BoundGraph(self._inputs, bound_symbols, self._outputs), refuses=True)
        return no_autocast(function)(*map(_fill, self._inputs, range(len(self._inputs))))


def _fill(proxy: TensorProxy, number: int) -> torch.Tensor:
    """Returns a tensor for a proxy, with its values in another order than those of its neighbours."""
    dtype = dtypes.to_torch_dtype(proxy.dtype)
    values = torch.tensor(_VALUES[number % len(_VALUES)], device="cpu")
    values = values > 0 if dtype is torch.bool else values.to(dtype) if dtype.is_signed else values.abs().to(dtype)
    return values.reshape(proxy.shape) if proxy.ndim else values[1]


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Hides trials from torch's modes, which could observe or change them, and silences torch's warnings."""
    with torch.no_grad(), _disable_current_modes(), torch._C.DisableTorchFunction(), silence():
        yield


def _is_like(found: torch.Tensor, expected: torch.Tensor) -> bool:
    if (found.dtype, found.shape) != (expected.dtype, expected.shape):
        return False
    if not (found.dtype.is_floating_point or found.dtype.is_complex):
        return torch.equal(found, expected)
    tolerance, wide = _ROUNDINGS * torch.finfo(found.dtype).eps, torch.complex128
    return torch.allclose(found.to(wide), expected.to(wide), rtol=tolerance, atol=tolerance, equal_nan=True)
