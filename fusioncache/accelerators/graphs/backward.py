"""A backward program as Thunder calls it: replayed after a forward program that was."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import update_wrapper
from typing import Any

from fusioncache.accelerators.graphs.calls import Kind, KindReader, Warm
from fusioncache.accelerators.graphs.captured_backward import BackwardFunction, CapturedBackward
from fusioncache.accelerators.graphs.failures import Failures
from fusioncache.accelerators.graphs.memory import GraphMemory
from fusioncache.accelerators.graphs.promises import Promise, find_promise
from fusioncache.ir.errors import Declined, Scope


class BackwardProgram:
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
        self._function = function
        self._failures = failures
        self._memory_of = memory_of
        self._refused = refused
        self._reader: KindReader | None = None
        self._kinds: dict[Kind, Warm] = {}
        update_wrapper(self, function)
        if refused:
            failures.refuse(refused)

    def __call__(self, saved_for_backward: list[Any], cotangents: list[Any]) -> Any:
        """Runs or replays it. Empties the lists, as Thunder does."""
        promise = find_promise(saved_for_backward[1])
        if self._refused is not None:
            return self._run(saved_for_backward, cotangents, promise)
        try:
            kind = (self._reader or self._begin(cotangents)).read(cotangents)
            return self._call(kind, saved_for_backward, cotangents, promise)
        except Declined as refusal:
            refusal.require(Scope.CAPTURE)
            self._failures.refuse(refusal.reason)
        return self._run(saved_for_backward, cotangents, promise)

    def _begin(self, cotangents: Sequence[Any]) -> KindReader:
        try:
            reader = KindReader(cotangents)
            self._memory_of(reader.device)
        except Declined as refusal:
            refusal.require(Scope.CAPTURE)
            self._refused = refusal.reason
            raise
        self._reader = reader
        return reader

    def _call(self, kind: Kind, saved_for_backward: list[Any], cotangents: list[Any], promise: Promise | None) -> Any:
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
        kind: Kind,
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
            captured = promise.captured.backwards.find(kind)
            if captured is None:
                complete = promise.captured.complete(saved)
                captured = self._capture(warm, promise, others, (complete, cotangents), kind, memory)
            gradients = captured.run(saved, cotangents)
            promise.end()
        finally:
            memory.end()
        self._failures.tally.count_graph_replay()
        self._failures.tally.count_gradients_copied(captured.count_copies())
        for emptied in (saved, cotangents, saved_for_backward):
            emptied.clear()
        return gradients

    def _capture(
        self,
        warm: Warm,
        promise: Promise,
        others: Sequence[Any],
        given: tuple[Sequence[Any], Sequence[Any]],
        kind: Kind,
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
        self._failures.tally.count_capture()
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
    """Tells whether autograd keeps what was saved for another backward, as with ``retain_graph=True``."""
    import torch

    try:
        return bool(torch._C._autograd._get_current_graph_task_keep_graph())
    except (AttributeError, RuntimeError):  # another torch's, or nobody's backward
        return True
