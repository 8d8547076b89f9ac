"""A captured backward program, and all captures of it that belong to one forward capture.

There is one capture, and more where the user holds on to gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fusioncache.accelerators.graphs.buffers import find_memory, make_buffer
from fusioncache.accelerators.graphs.calls import Build, CallKind, take_apart, without_gradients
from fusioncache.accelerators.graphs.memory import LENT, GraphMemory, Keeper, Loan, Loans, Promise, can_lend
from fusioncache.accelerators.graphs.results import Arguments, Results
from fusioncache.ir.errors import Declined, Scope


class BackwardCaptures:
    """The backward programs that were captured after one forward program: for a kind of gradients one in each pool.

    Args:
        loans: of the device.
    """

    def __init__(self, loans: Loans):
        self._loans = loans
        self._captured: list[CapturedBackward] = []

    def find_capture(self, kind: CallKind) -> CapturedBackward | None:
        """Returns what may be replayed now for gradients of a kind; None if nothing may."""
        return next((each for each in self._captured if each.kind == kind and each.is_free()), None)

    def find_pool(self, kind: CallKind) -> int:
        """Returns the pool for another capture for gradients of a kind.

        Raises:
            Declined: if no pool is free.
        """
        pool = self._loans.find_pool([each.pool for each in self._captured if each.kind == kind])
        if pool is None:
            raise Declined(LENT, Scope.CAPTURE)
        return pool

    def add(self, captured: CapturedBackward) -> None:
        """Adds what was captured."""
        self._captured.append(captured)


BackwardFunction = Callable[[list[Any], list[Any]], Any]
"""Takes what the forward program saved, tensors and others, and the gradients of its outputs. It empties both lists."""


class CapturedBackward:
    """A backward program as it was captured after one forward program.

    What that saved is read where it lies. Gradients of outputs are copied in. Those of inputs are lent as they lie, or
    copied where that cannot be.

    Args:
        function: the program.
        promise: of the forward program.
        others: what it saved besides tensors.
        given: all saved tensors and the gradients of this call. It is not run.
        kind: of the gradients.
        memory: of the device.
        pool: where it is captured.

    Attributes:
        kind: the same.
        pool: the same.

    Raises:
        Declined: if it cannot be.
        Exception: whatever goes wrong in the capture.
    """

    def __init__(
        self,
        function: BackwardFunction,
        promise: Promise,
        others: Sequence[Any],
        given: tuple[Sequence[Any], Sequence[Any]],
        kind: CallKind,
        memory: GraphMemory,
        pool: int,
    ):
        self.kind = kind
        self.pool = pool
        saved, gradients = given
        self._loans = memory.loans
        self._safe = memory.loans.list_names(pool)
        self._copied = tuple(make_buffer(gradient) for gradient in gradients)
        inputs = promise.captured.list_inputs(saved)
        outside = [(number, inputs[place]) for number, place in enumerate(promise.captured.saved_outside)]
        passed = len(promise.captured.passed)
        outside += [(passed + number, buffer.tensor) for number, buffer in enumerate(self._copied)]
        inputs += [buffer.tensor for buffer in self._copied]
        builds: list[Build] = []
        count, others = len(saved), tuple(others)

        def record(arguments: list[Any]) -> list[Any]:
            tensors, cotangents = arguments[:count], arguments[count:]
            arguments.clear()
            leaves, build = take_apart(function([tensors, others], cotangents))
            builds.append(build)
            return leaves

        recording = memory.recorder.record(record, inputs.copy(), pool)
        self._replay, self._build = recording.replay, builds[-1]
        keeper = Keeper(recording.replay)
        self._results = Results(recording.results, Arguments(outside), (), memory.recorder.device, keeper)
        self._loan = self._make_loan(keeper, recording.results, inputs)
        recording.results.clear()

    def is_free(self) -> bool:
        """True if it may be replayed now, for all that is lent. What it lent itself forbids it."""
        return self._loans.allows(self.pool, self._safe)

    def _make_loan(self, keeper: Keeper, leaves: Sequence[Any], inputs: Sequence[Any]) -> Loan | None:
        """Returns the loan of what was captured; None if nothing can be lent, as where it is what forward saved."""
        import torch

        lent = set(self._results.copier.list_storages())
        given = {find_memory(each) for each in inputs if isinstance(each, torch.Tensor)}
        if not lent or not can_lend() or lent & given:
            return None
        owners = [each for each in leaves if isinstance(each, torch.Tensor) and find_memory(each) in lent]
        return Loan(self._results.copier, keeper, owners, self.pool)

    @property
    def lends(self) -> bool:
        """True if gradients are given as they lie."""
        return self._loan is not None and not self._loan.is_recalled

    def count_copies(self) -> int:
        """Returns how many gradients are copied after a replay."""
        return 0 if self.lends else self._results.copier.count

    def run(self, passed: Sequence[Any], gradients: Sequence[Any]) -> Any:
        """Replays it for a call, of whose saved tensors autograd kept these; returns the gradients of the inputs."""
        loan = self._loan if self.lends else None
        with without_gradients():
            for buffer, gradient in zip(self._copied, gradients, strict=True):
                buffer.fill(gradient)
            self._replay()
            leaves = self._results.give([*passed, *gradients], loan.lend if loan else None)
        if loan is not None:
            self._loans.add(loan)
        return self._build(leaves)
