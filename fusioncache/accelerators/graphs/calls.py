"""The kinds of calls of a program: what must be equal for a replay to do what the call would.

Part of a kind are torch's settings, read in a microsecond or two: a captured program launches the kernels that the
settings of its capture asked for, while one that runs as it is asks for them in each call.
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
    """Returns torch's settings, in an order of their own, as values that can be compared."""
    getters, read_precision = _find_getters()
    return (*[get() for get in getters], *[read_precision(*which) for which in _PRECISIONS])


@cache
def _find_getters() -> tuple[tuple[Callable[[], Any], ...], Callable[..., Any]]:
    found = tuple(getattr(torch._C, name) for name in _GETTERS if hasattr(torch._C, name))
    return tuple(map(_wrap, found)), getattr(torch._C, "_get_fp32_precision_getter", lambda *_: None)


def _wrap(get: Callable[[], Any]) -> Callable[[], Any]:
    """Returns a getter whose value has a hash and that does not raise; the getter itself where that is so already."""
    if get.__name__ == "_get_float32_matmul_precision":
        return lambda: _read_old_precision(get)
    return (lambda: tuple(get())) if isinstance(get(), list) else get


def _read_old_precision(get: Callable[[], Any]) -> Any:
    try:
        return get()
    except RuntimeError:  # the precision was set by torch's newer interface, which ``_PRECISIONS`` ask
        return None


def is_intercepted() -> bool:
    """True if a mode sees each of torch's operations, which it would not in a replay.

    The mode that ``torch.set_default_device`` and ``with device:`` install is none of these: a trace names its devices.
    """
    from torch.overrides import _get_current_function_mode_stack
    from torch.utils._device import DeviceContext

    if torch._C._len_torch_dispatch_stack():
        return True
    return any(not isinstance(mode, DeviceContext) for mode in _get_current_function_mode_stack())


def is_saving_hooked() -> bool:
    """True if hooks take over what autograd saves: they may keep it for longer than its memory is leased."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False) is not None


def without_gradients() -> AbstractContextManager[Any]:
    """Returns a context in which autograd records nothing. It takes no time where autograd records nothing anyway."""
    return torch.no_grad() if torch.is_grad_enabled() else _AS_IT_IS


Build = Callable[[Sequence[Any]], Any]
"""Puts leaves together as they were, in new lists and dicts."""


def take_apart(value: Any) -> tuple[list[Any], Build]:
    """Returns the leaves of nested tuples, lists and dicts, and what puts others together in the same way."""
    leaves: list[Any] = []
    return leaves, _take_apart(value, leaves)


def _take_apart(value: Any, leaves: list[Any]) -> Build:
    if type(value) is dict:
        names = tuple(value)
        builds = [_take_apart(value[name], leaves) for name in names]
        return lambda found: {name: build(found) for name, build in zip(names, builds, strict=True)}
    if type(value) in (tuple, list):
        return _take_sequence_apart(value, leaves)
    position = len(leaves)
    leaves.append(value)
    return lambda found: found[position]


def _take_sequence_apart(value: Sequence[Any], leaves: list[Any]) -> Build:
    start, kind = len(leaves), type(value)
    builds = [_take_apart(each, leaves) for each in value]
    stop = len(leaves)
    if stop - start == len(value) and not any(type(each) in (tuple, list, dict) for each in value):
        return (lambda found: list(found[start:stop])) if kind is list else (lambda found: tuple(found[start:stop]))
    if kind is list:
        return lambda found: [build(found) for build in builds]
    return lambda found: tuple([build(found) for build in builds])


MOST_KINDS = 16
"""How many kinds of calls of one program may be captured. Its sizes are fixed: others lie otherwise in memory."""


class CallKind:
    """Stands for one kind of calls of one program, and for none of another: it is equal to nothing but itself."""

    __slots__ = ()


class KindReader:
    """Tells kinds of calls of one program apart.

    Thunder's prologue has checked shapes, dtypes and devices; strides, classes and torch's settings it has not.

    Args:
        arguments: of its first call.

    Attributes:
        positions: of the tensors among the arguments.
        device: of all of them.

    Raises:
        Declined: if there is no tensor, or not all are on one device on which programs can be captured.
    """

    def __init__(self, arguments: Sequence[Any]):
        self.positions = tuple(place for place, each in enumerate(arguments) if isinstance(each, torch.Tensor))
        self._others = tuple(place for place in range(len(arguments)) if place not in set(self.positions))
        tensors = [check_tensor(arguments[place], "takes") for place in self.positions]
        devices = {tensor.device for tensor in tensors}
        if len(devices) != 1:
            raise Declined("tensors on several devices" if devices else "no tensor among its arguments", Scope.CAPTURE)
        (self.device,) = devices
        self._stride: Callable[[Any], tuple[int, ...]] = torch.Tensor.stride
        self._is_negative: Callable[[Any], bool] = torch.Tensor.is_neg
        self._is_conjugate: Callable[[Any], bool] = torch.Tensor.is_conj
        self._kinds: dict[Hashable, CallKind] = {}
        self._last: _LastCall | None = None

    def take_tensors(self, arguments: Sequence[Any]) -> Sequence[Any]:
        """Returns the tensors among the arguments."""
        return [arguments[place] for place in self.positions] if self._others else arguments

    def kind_of(self, arguments: Sequence[Any]) -> CallKind:
        """Returns the kind of a call.

        Raises:
            Declined: if there is no tensor where others had one, a value that has no hash, or one kind too many.
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
        # Numbers at one address may be read as they are, or as their negatives or conjugates.
        is_special = any(map(self._is_negative, tensors)) or any(map(self._is_conjugate, tensors))
        key = tuple(map(type, tensors)), tuple(map(self._stride, tensors)), is_special, context
        if key not in self._kinds and len(self._kinds) >= MOST_KINDS:
            raise Declined(f"more than {MOST_KINDS} kinds of inputs", Scope.CAPTURE)
        return self._kinds.setdefault(key, CallKind())  # other threads get the same one, and never one of another call


@dataclass(frozen=True, slots=True)
class _LastCall:
    """What the last call was like. Most calls are like the one before.

    Attributes:
        guard: of its tensors.
        settings: of torch.
        others: arguments that are no tensors, with their types.
        kind: of it.
    """

    guard: Guard
    settings: tuple[Any, ...]
    others: tuple[Any, ...]
    kind: CallKind


class Warm:
    """Runs calls of one kind as they are, until all that they run is compiled, loaded, and may be captured.

    Mostly that is one call. What the run draws at random, another process may have to draw again from a seed on the
    host. So it is watched.

    Attributes:
        refused: why calls of this kind are not captured; None if they can be.
        is_warm: whether the next call may be captured.
    """

    def __init__(self) -> None:
        self.refused: str | None = None
        self.is_warm = False

    def run(self, recorder: CudaRecorder, tensors: Sequence[Any], call: Callable[[], Any]) -> Any:
        """Runs a call, and finds out whether others of its kind can be captured.

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
