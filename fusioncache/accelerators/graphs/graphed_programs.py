"""Forward and backward programs as Thunder calls them: replayed where that does what the call would do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any

from fusioncache.accelerators.graphs.calls import CallKind, KindReader, Warm, is_saving_hooked
from fusioncache.accelerators.graphs.captured_backward import BackwardFunction, CapturedBackward
from fusioncache.accelerators.graphs.captured_forward import CapturedForward, ForwardCaptures, ForwardFunction
from fusioncache.accelerators.graphs.memory import GraphMemory, Promise, find_promise
from fusioncache.accelerators.graphs.recorder import Failures
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
        """True if these calls run as they are, for a reason that was counted before."""
        return self.warm.refused is not None or self.captures.refused is not None


class _GraphedProgram:
    """What forward and backward programs have in common: the reader of their calls, which the first call makes."""

    def __init__(self, failures: Failures, memory_of: Callable[[Any], GraphMemory], refused: str | None = None):
        self._failures = failures
        self._memory_of = memory_of
        self._refused = refused
        self._reader: KindReader | None = None

    def _begin(self, args: Sequence[Any]) -> KindReader:
        """Returns the reader of calls with such arguments.

        Raises:
            Declined: if no such call can be captured.
        """
        try:
            reader = KindReader(args)
            self._memory_of(reader.device)
        except Declined as refusal:
            refusal.require(Scope.CAPTURE)
            self._refused = refusal.reason
            raise
        self._reader = reader
        return reader


class ForwardProgram(_GraphedProgram):
    """A forward program that is replayed where that does what it would do, and else runs as it is.

    Args:
        function: the program.
        failures: counts, and says what went wrong.
        memory_of: returns the memory of a device.
    """

    def __init__(self, function: ForwardFunction, failures: Failures, memory_of: Callable[[Any], GraphMemory]):
        super().__init__(failures, memory_of)
        self._function = function
        self._kinds: dict[CallKind, _Captured] = {}
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
        """True if anything of it is captured at this moment."""
        return any(kind.captures.count for kind in tuple(self._kinds.values()))

    def _find_kind(self, reader: KindReader, args: Sequence[Any]) -> _Captured:
        import torch

        kind = reader.kind_of(args)
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
            captured = kind.captures.find_capture(args)
            if captured is None:
                captured = self._capture(kind, args)
            result = captured.run(args)
        finally:
            memory.end()
        self._failures.ledger.count("graph_replays")
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
        self._failures.ledger.count("captures")
        return captured


class BackwardProgram(_GraphedProgram):
    """A backward program that is captured with the forward program before it, and called in its place.

    Args:
        function: the program.
        failures: counts, and says what went wrong.
        memory_of: returns the memory of a device.
        refused: why it is not captured; None if it can be.
    """

    def __init__(
        self,
        function: BackwardFunction,
        failures: Failures,
        memory_of: Callable[[Any], GraphMemory],
        refused: str | None = None,
    ):
        super().__init__(failures, memory_of, refused)
        self._function = function
        self._kinds: dict[CallKind, Warm] = {}
        update_wrapper(self, function)
        if refused:
            failures.refuse(refused)

    def __call__(self, saved_for_backward: list[Any], cotangents: list[Any]) -> Any:
        """Runs or replays it. Empties the lists, as Thunder does."""
        promise = find_promise(saved_for_backward[1])
        if self._refused is not None:
            return self._run(saved_for_backward, cotangents, promise)
        try:
            kind = (self._reader or self._begin(cotangents)).kind_of(cotangents)
            return self._call(kind, saved_for_backward, cotangents, promise)
        except Declined as refusal:
            refusal.require(Scope.CAPTURE)
            self._failures.refuse(refusal.reason)
        return self._run(saved_for_backward, cotangents, promise)

    def _call(
        self, kind: CallKind, saved_for_backward: list[Any], cotangents: list[Any], promise: Promise | None
    ) -> Any:
        warm = self._kinds.get(kind)
        if warm is None:
            warm = self._kinds[kind] = Warm()
        if warm.refused is not None or (promise is None and warm.is_warm):
            return self._run(saved_for_backward, cotangents, promise)
        if not warm.is_warm:
            return self._warm_up(warm, saved_for_backward, cotangents, promise)
        assert promise is not None
        if promise.is_over:
            raise Declined(
                "the memory of its forward pass was given to another program before the backward pass", Scope.CAPTURE
            )
        if keeps_graph():
            raise Declined("a backward pass with retain_graph=True", Scope.CAPTURE)
        return self._replay(kind, warm, saved_for_backward, cotangents, promise)

    def _warm_up(
        self, warm: Warm, saved_for_backward: list[Any], cotangents: list[Any], promise: Promise | None
    ) -> Any:
        recorder = self._memory_of(cotangents[0].device).recorder
        tensors = [*cotangents]
        result = warm.run(recorder, tensors, lambda: self._run(saved_for_backward, cotangents, promise))
        reason = warm.explain_wait()
        if reason is not None:
            self._failures.refuse(reason)
        return result

    def _replay(
        self,
        kind: CallKind,
        warm: Warm,
        saved_for_backward: list[Any],
        cotangents: list[Any],
        promise: Promise,
    ) -> Any:
        saved, others = saved_for_backward
        memory = self._memory_of(cotangents[0].device)
        reason = memory.begin()
        if reason is not None:
            raise Declined(reason, Scope.CAPTURE)
        try:
            if not promise.captured.knows(saved, promise):
                raise Declined("the tensors saved for backward were replaced", Scope.CAPTURE)
            memory.loans.settle()
            captured = promise.captured.backwards.find_capture(kind)
            if captured is None:
                complete = promise.captured.complete(saved)
                captured = self._capture(warm, promise, others, (complete, cotangents), kind, memory)
            gradients = captured.run(saved, cotangents)
            promise.end()
        finally:
            memory.end()
        self._failures.ledger.count("graph_replays")
        self._failures.ledger.count("gradients_copied", captured.count_copies())
        for emptied in (saved, cotangents, saved_for_backward):
            emptied.clear()
        return gradients

    def _capture(
        self,
        warm: Warm,
        promise: Promise,
        others: Sequence[Any],
        given: tuple[Sequence[Any], Sequence[Any]],
        kind: CallKind,
        memory: GraphMemory,
    ) -> CapturedBackward:
        import torch

        pool = promise.captured.backwards.find_pool(kind)
        try:
            with torch.inference_mode(False), torch.no_grad():
                captured = CapturedBackward(self._function, promise, others, given, kind, memory, pool)
        except Exception as error:
            warm.refused = self._failures.explain(error, "a backward program")
            raise Declined(warm.refused, Scope.CAPTURE) from None
        promise.captured.backwards.add(captured)
        promise.captured.let_go()
        self._failures.ledger.count("captures")
        return captured

    def _run(self, saved_for_backward: list[Any], cotangents: list[Any], promise: Promise | None) -> Any:
        """Runs the program as it is. If it was the last time, what it was given need not stay."""
        if promise is None:
            return self._function(saved_for_backward, cotangents)
        keeps = keeps_graph()
        saved_for_backward[0][:] = promise.captured.complete(saved_for_backward[0])
        try:
            return self._function(saved_for_backward, cotangents)
        finally:
            promise.captured.catch_up()
            if not keeps:
                promise.end()


def keeps_graph() -> bool:
    """True if autograd keeps what was saved for another backward, as with ``retain_graph=True``."""
    import torch

    try:
        return bool(torch._C._autograd._get_current_graph_task_keep_graph())
    except (AttributeError, RuntimeError):  # another torch's, or outside a backward
        return True
