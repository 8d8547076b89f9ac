"""A forward program as Thunder calls it: replayed where that does what it would do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any

from fusioncache.accelerators.graphs.calls import Kind, KindReader, Warm
from fusioncache.accelerators.graphs.captured_forward import CapturedForward, ForwardFunction
from fusioncache.accelerators.graphs.captures import ForwardCaptures
from fusioncache.accelerators.graphs.failures import Failures
from fusioncache.accelerators.graphs.memory import GraphMemory
from fusioncache.accelerators.graphs.settings import is_saving_hooked
from fusioncache.ir.errors import Declined, Scope, is_declined


@dataclass(frozen=True, slots=True)
class _Captured:
    """What is captured of one kind of calls.

    Attributes:
        warm: runs calls before the first capture.
        captures: replays the others.
    """

    warm: Warm
    captures: ForwardCaptures

    @property
    def is_refused(self) -> bool:
        """Tells whether these calls run as they are, for a reason that was counted before."""
        return self.warm.refused is not None or self.captures.refused is not None


class ForwardProgram:
    """A forward program that is replayed where that does what it would do, and else runs as it is.

    Args:
        function: the program.
        failures: counts, and says what went wrong.
        memory_of: returns the memory of a device.
    """

    def __init__(self, function: ForwardFunction, failures: Failures, memory_of: Callable[[Any], GraphMemory]):
        self._function = function
        self._failures = failures
        self._memory_of = memory_of
        self._refused: str | None = None
        self._reader: KindReader | None = None
        self._kinds: dict[Kind, _Captured] = {}
        update_wrapper(self, function.call)

    def __call__(self, *args: Any) -> Any:
        """Returns what the program returns."""
        if self._refused is not None:
            return self._function.call(*args)
        try:
            reader = self._reader or self._begin(args)
            kind = self._find_kind(reader, args)
            if not kind.is_refused:
                return self._replay(reader, kind, args) if kind.warm.is_warm else self._warm_up(reader, kind, args)
        except Declined as refusal:
            refusal.require(Scope.CAPTURE)
            self._failures.refuse(refusal.reason)
        return self._function.call(*args)

    @property
    def is_captured(self) -> bool:
        """Tells whether anything of it is captured at this moment."""
        return any(kind.captures.count for kind in tuple(self._kinds.values()))

    def _begin(self, args: Sequence[Any]) -> KindReader:
        try:
            reader = KindReader(args)
            self._memory_of(reader.device)
        except Declined as refusal:
            refusal.require(Scope.CAPTURE)
            self._refused = refusal.reason
            raise
        self._reader = reader
        return reader

    def _find_kind(self, reader: KindReader, args: Sequence[Any]) -> _Captured:
        import torch

        kind = reader.read(args)
        found = self._kinds.get(kind)
        if found is None:
            parameters = [isinstance(each, torch.nn.Parameter) for each in reader.take_tensors(args)]
            memory = self._memory_of(reader.device)
            captures = ForwardCaptures(self._function, reader.positions, parameters, memory)
            found = self._kinds[kind] = _Captured(Warm(), captures)
        return found

    def _warm_up(self, reader: KindReader, kind: _Captured, args: Sequence[Any]) -> Any:
        kind.captures.observe(args)
        recorder = self._memory_of(reader.device).recorder
        result = kind.warm.run(recorder, reader.take_tensors(args), lambda: self._function.call(*args))
        reason = kind.warm.explain_wait()
        if reason is not None:
            self._failures.refuse(reason)
        return result

    def _replay(self, reader: KindReader, kind: _Captured, args: Sequence[Any]) -> Any:
        if self._function.has_backward and is_saving_hooked():
            raise Declined("saved-tensor hooks are active", Scope.CAPTURE)
        memory = self._memory_of(reader.device)
        reason = memory.begin()
        if reason is not None:
            raise Declined(reason, Scope.CAPTURE)
        try:
            captured = kind.captures.find(args)
            if captured is None:
                captured = self._capture(kind, args)
            result = captured.run(args)
        finally:
            memory.end()
        self._failures.tally.count_graph_replay()
        return result

    def _capture(self, kind: _Captured, args: Sequence[Any]) -> CapturedForward:
        import torch

        try:
            with torch.inference_mode(False), torch.no_grad():
                captured = kind.captures.capture(args)
        except Exception as error:
            if is_declined(error, Scope.CAPTURE):
                raise
            kind.captures.refused = self._failures.explain(error, "a forward program")
            raise Declined(kind.captures.refused, Scope.CAPTURE) from None
        self._failures.tally.count_capture()
        return captured
