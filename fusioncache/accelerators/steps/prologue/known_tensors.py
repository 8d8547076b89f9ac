"""Parameters and buffers that passed a prologue's checks: as long as all are as they were, none is checked alone.

    if not known.check(w, b):
      expected = known.expect(w, b)
      if not (w.shape == (3, 2) and ...):
        check_tensor_metadata(w, (3, 2), ...)
      ...
      known.learn(expected, w, b)

Another thread may change a tensor between its check and what is learned of it. So a guard that was made behind the
checks of one call is trusted once it held both before and behind those of another.
"""

from __future__ import annotations

from typing import Any

from fusioncache.process.tensor_guards import Guard, guard_tensors

MOST_GUARDS = 8
"""How many guards one prologue makes. Where strides differ from call to call, say, they are of no use."""


class KnownTensors:
    """What one prologue knows of tensors that passed it.

    Attributes:
        check: tells whether tensors are as they were when they passed.
    """

    __slots__ = ("_guards", "_next", "check")

    def __init__(self) -> None:
        self.check: Guard = _know_nothing
        self._next: Guard = _know_nothing
        self._guards = 0

    def expect(self, *tensors: Any) -> Guard | None:
        """Returns, before the checks, the guard of the last call that passed; None if tensors are otherwise now."""
        guard = self._next
        return guard if guard(*tensors) else None

    def learn(self, expected: Guard | None, *tensors: Any) -> None:
        """Takes note of tensors that passed.

        Args:
            expected: what ``expect`` returned before the checks.
            tensors: the same.
        """
        if expected is not None and expected(*tensors):
            self.check = expected
        elif self._guards < MOST_GUARDS:
            self._guards += 1
            self._next = guard_tensors(tensors) or _know_nothing


def _know_nothing(*_: Any) -> bool:
    return False
