"""The kinds of calls of a program: the properties that must be equal for a replay to have the effect of the call.

Torch's settings are part of a kind, and are read in a microsecond or two: a captured program launches the kernels that
the settings chose at its capture, while a program without a graph follows the settings of each call.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from fusioncache.accelerators.graphs.buffers import check_tensor
from fusioncache.accelerators.graphs.cuda import CudaRecorder
from fusioncache.ir.errors import Declined, Scope
from fusioncache.process.tensor_guards import Guard, guard_tensors

_GETTERS = (
    "_get_cublas_allow_bf16_reduced_precision_reduction",
    "_get_cublas_allow_fp16_reduced_precision_reduction",
    "_get_cublas_allow_fp16_accumulation",
    "_get_float32_matmul_precision",
    "_get_cudnn_enabled",
    "_get_cudnn_benchmark",
    "_get_cudnn_deterministic",
    "_get_deterministic_algorithms",
    "_get_deterministic_algorithms_warn_only",
    "_get_deterministic_fill_uninitialized_memory",
    "_get_flash_sdp_enabled",
    "_get_mem_efficient_sdp_enabled",
    "_get_math_sdp_enabled",
    "_get_cudnn_sdp_enabled",
    "_get_math_sdp_allow_fp16_bf16_reduction",
    "_get_sdp_priority_order",
    "_get_blas_preferred_backend",
    "_get_linalg_preferred_backend",
    "_len_torch_dispatch_stack",
    "_len_torch_function_stack",
)
_PRECISIONS = (("generic", "all"), ("cuda", "matmul"), ("cuda", "conv"), ("cuda", "rnn"))
_AS_IT_IS = nullcontext()


def read_settings() -> tuple[Any, ...]:
    """Returns torch's settings, in a fixed order, as values that can be compared."""
    getters, read_precision = _find_getters()
    return (*[get() for get in getters], *[read_precision(*which) for which in _PRECISIONS])


@cache
def _find_getters() -> tuple[tuple[Callable[[], Any], ...], Callable[..., Any]]:
    found = tuple(getattr(torch._C, name) for name in _GETTERS if hasattr(torch._C, name))
    return tuple(map(_wrap, found)), getattr(torch._C, "_get_fp32_precision_getter", lambda *_: None)


def _wrap(get: Callable[[], Any]) -> Callable[[], Any]:
    """Returns a getter that does not raise and whose value is hashable; the same getter if it is one already."""
    if get.__name__ == "_get_float32_matmul_precision":
        return lambda: _read_old_precision(get)
    return (lambda: tuple(get())) if isinstance(get(), list) else get


def _read_old_precision(get: Callable[[], Any]) -> Any:
    try:
        return get()
    except RuntimeError:  # the precision was set by torch's newer interface, which ``_PRECISIONS`` cover
        return None


def is_intercepted() -> bool:
    """True if a mode intercepts each of torch's operations, which it could not in a replay.

    The mode that ``torch.set_default_device`` and ``with device:`` install does not count: a trace names its devices.
    """
    from torch.overrides import _get_current_function_mode_stack
    from torch.utils._device import DeviceContext

    if torch._C._len_torch_dispatch_stack():
        return True
    return any(not isinstance(mode, DeviceContext) for mode in _get_current_function_mode_stack())


def is_saving_hooked() -> bool:
    """True if saved-tensor hooks are active: they may keep saved tensors for longer than their memory is leased."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False) is not None


def without_gradients() -> AbstractContextManager[Any]:
    """Returns a context in which autograd records nothing. It takes no time if autograd is off already."""
    return torch.no_grad() if torch.is_grad_enabled() else _AS_IT_IS


Build = Callable[[Sequence[Any]], Any]
"""Assembles leaves in the original structure, with new lists and dicts."""


def flatten_structure(value: Any) -> tuple[list[Any], Build]:
    """Returns the leaves of nested tuples, lists and dicts, and a function that assembles other leaves likewise."""
    leaves: list[Any] = []
    return leaves, _flatten_structure(value, leaves)


def _flatten_structure(value: Any, leaves: list[Any]) -> Build:
    if type(value) is dict:
        names = tuple(value)
        builds = [_flatten_structure(value[name], leaves) for name in names]
        return lambda found: {name: build(found) for name, build in zip(names, builds, strict=True)}
    if type(value) in (tuple, list):
        return _flatten_sequence(value, leaves)
    position = len(leaves)
    leaves.append(value)
    return lambda found: found[position]


def _flatten_sequence(value: Sequence[Any], leaves: list[Any]) -> Build:
    start, kind = len(leaves), type(value)
    builds = [_flatten_structure(each, leaves) for each in value]
    stop = len(leaves)
    if stop - start == len(value) and not any(type(each) in (tuple, list, dict) for each in value):
        return (lambda found: list(found[start:stop])) if kind is list else (lambda found: tuple(found[start:stop]))
    if kind is list:
        return lambda found: [build(found) for build in builds]
    return lambda found: tuple([build(found) for build in builds])


MAX_KINDS = 16
"""How many kinds of calls of one program may be captured. Its sizes are fixed, so most kinds differ in strides."""


class CallKind:
    """Identifies one kind of call of one program. Equal only to itself."""

    __slots__ = ()


class KindReader:
    """Finds the kind of each call of one program.

    Thunder's prologue has checked shapes, dtypes and devices, but not strides, classes and torch's settings.

    Args:
        arguments: of its first call.

    Attributes:
        positions: of the tensors among the arguments.
        device: of all of them.

    Raises:
        Declined: if there is no tensor, one is not ordinary, or not all are on one device.
    """

    def __init__(self, arguments: Sequence[Any]):
        self.positions = tuple(place for place, each in enumerate(arguments) if isinstance(each, torch.Tensor))
        self._others = tuple(place for place in range(len(arguments)) if place not in set(self.positions))
        tensors = [check_tensor(arguments[place], "takes") for place in self.positions]
        devices = {tensor.device for tensor in tensors}
        if len(devices) != 1:
            raise Declined("tensors on several devices" if devices else "no tensor among its arguments", Scope.CAPTURE)
        (self.device,) = devices
        self._kinds: dict[Hashable, CallKind] = {}
        self._last: _LastCall | None = None

    def take_tensors(self, arguments: Sequence[Any]) -> Sequence[Any]:
        """Returns the tensors among the arguments."""
        return [arguments[place] for place in self.positions] if self._others else arguments

    def kind_of(self, arguments: Sequence[Any]) -> CallKind:
        """Returns the kind of a call.

        Raises:
            Declined: if a tensor is missing, a value is not hashable, or there are too many kinds.
        """
        tensors, settings = self.take_tensors(arguments), read_settings()
        others = tuple((type(arguments[place]), arguments[place]) for place in self._others)
        last = self._last
        if last is not None and last.guard(*tensors) and last.settings == settings and last.others == others:
            return last.kind
        guard = guard_tensors(tensors)
        try:
            kind = self._find(tensors, (settings, others))
        except TypeError as error:
            raise Declined("an argument that cannot be compared with those of earlier calls", Scope.CAPTURE) from error
        self._last = guard and _LastCall(guard, settings, others, kind)
        return kind

    def _find(self, tensors: Sequence[Any], context: Hashable) -> CallKind:
        # A negative or conjugate bit changes how the numbers at one address are read.
        is_special = any(map(torch.Tensor.is_neg, tensors)) or any(map(torch.Tensor.is_conj, tensors))
        key = tuple(map(type, tensors)), tuple(map(torch.Tensor.stride, tensors)), is_special, context
        if key not in self._kinds and len(self._kinds) >= MAX_KINDS:
            raise Declined(f"more than {MAX_KINDS} kinds of inputs", Scope.CAPTURE)
        return self._kinds.setdefault(key, CallKind())  # atomic: threads get the same kind for equal keys


@dataclass(frozen=True, slots=True)
class _LastCall:
    """The properties of the last call, as most calls are like the previous one.

    Attributes:
        guard: of its tensors.
        settings: of torch.
        others: arguments that are not tensors, with their types.
        kind: of the call.
    """

    guard: Guard
    settings: tuple[Any, ...]
    others: tuple[Any, ...]
    kind: CallKind


class WarmUp:
    """Runs calls of one kind without a graph, until everything that they run is compiled, loaded, and may be captured.

    Mostly one call is enough. Random numbers that the run draws may have to be drawn again, from a seed on the host,
    by another process. So the random state is watched.

    Attributes:
        refused: why calls of this kind are not captured; None if they can be.
        is_warm: whether the next call may be captured.
    """

    def __init__(self) -> None:
        self.refused: str | None = None
        self.is_warm = False

    def run(self, recorder: CudaRecorder, tensors: Sequence[Any], call: Callable[[], Any]) -> Any:
        """Runs a call, and determines whether others of its kind can be captured.

        Args:
            recorder: of the device.
            tensors: the arguments.
            call: runs it.
        """
        if recorder.explain_unready() is not None:
            return call()
        try:
            for tensor in tensors:
                check_tensor(tensor, "takes")
            if is_intercepted():
                raise Declined("a torch mode that intercepts each operation is active", Scope.CAPTURE)
        except Declined as refusal:
            refusal.require(Scope.CAPTURE)
            self.refused = refusal.reason
            return call()
        before = recorder.read_random_state()
        result = call()
        if recorder.read_random_state() != before:
            self.refused = "random numbers"
        self.is_warm = True
        return result
