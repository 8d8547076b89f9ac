"""The kinds of calls of a program: what must be equal for a replay to do what the call would."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from fusioncache.accelerators.graphs.recorder import Recorder
from fusioncache.accelerators.graphs.results import check_tensor
from fusioncache.accelerators.graphs.settings import is_intercepted, read_settings
from fusioncache.ir.errors import Declined, Scope
from fusioncache.process.preparation import WAITING, prepare
from fusioncache.process.tensor_guards import Guard, guard_tensors

MOST_KINDS = 16
"""How many kinds of calls of one program may be captured. Its sizes are fixed: others lie otherwise in memory."""


class Kind:
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
        import torch

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
        self._kinds: dict[Hashable, Kind] = {}
        self._last: _LastCall | None = None

    def take_tensors(self, arguments: Sequence[Any]) -> Sequence[Any]:
        """Returns the tensors among the arguments."""
        return [arguments[place] for place in self.positions] if self._others else arguments

    def read(self, arguments: Sequence[Any]) -> Kind:
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

    def _find(self, tensors: Sequence[Any], context: Hashable) -> Kind:
        # Numbers at one address may be read as they are, or as their negatives or conjugates.
        is_special = any(map(self._is_negative, tensors)) or any(map(self._is_conjugate, tensors))
        key = tuple(map(type, tensors)), tuple(map(self._stride, tensors)), is_special, context
        if key not in self._kinds and len(self._kinds) >= MOST_KINDS:
            raise Declined(f"more than {MOST_KINDS} kinds of inputs", Scope.CAPTURE)
        return self._kinds.setdefault(key, Kind())  # other threads get the same one, and never one of another call


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
    kind: Kind


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
        self._waits = False

    def run(self, recorder: Recorder, tensors: Sequence[Any], call: Callable[[], Any]) -> Any:
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
        with prepare() as preparation:
            result = call()
        if recorder.read_random_state() != before:
            self.refused = "random numbers"
        self._waits = preparation.waiting > 0
        self.is_warm = not self._waits
        return result

    def explain_wait(self) -> str | None:
        """Returns why the call that just ran leads to no capture, or to none yet; None for no reason of its own."""
        return self.refused or (WAITING if self._waits else None)
