"""What becomes of the residual streams of a model's traces."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fusioncache.residual.plans import Choice, ResidualPlan
from fusioncache.trace.calls import Compilers
from fusioncache.trace.recompute import Recompute, with_sums, without_sums
from fusioncache.trace.residual import replanned


@dataclass(frozen=True, slots=True)
class ResidualOptions:
    """What the user asked for.

    Attributes:
        recompute: whether sums that backward can rebuild are not saved for it.
        plan: for all streams; None for the cheapest of each.
        budget: how many bytes of a stream's sums may be kept alive; None for as many as the plan keeps.
    """

    recompute: bool
    plan: ResidualPlan | None
    budget: int | None

    @classmethod
    def of(cls, recompute: str | None, residual: str, memory_budget: int | None) -> ResidualOptions:
        """The options of ``FusionCache``.

        Raises:
            ValueError: if one is not what it may be.
        """
        plans = {plan.value: plan for plan in ResidualPlan}
        if recompute not in (None, "residual"):
            raise ValueError(f"recompute must be None or 'residual', got {recompute!r}")
        if residual != "auto" and residual not in plans:
            raise ValueError(f"residual must be one of {', '.join(map(repr, ['auto', *plans]))}, got {residual!r}")
        if memory_budget is not None and (isinstance(memory_budget, bool) or not isinstance(memory_budget, int)):
            raise ValueError(f"memory_budget must be a number of bytes, got {memory_budget!r}")
        if memory_budget is not None and memory_budget < 0:
            raise ValueError(f"memory_budget must not be negative, got {memory_budget}")
        return cls(recompute is not None, plans.get(residual), memory_budget)


class Streams:
    """Applies the options to the traces of a model, a forward trace and its backward trace in turn.

    Attributes:
        choices: what was chosen for each stream so far, with what the alternatives would have cost.
    """

    def __init__(self, options: ResidualOptions):
        self.choices: list[Choice] = []
        self._options = options
        self._waiting = threading.local()

    def rebuilt(self, trace: Any) -> Any:
        """The backward trace of a forward trace that saves no sums; any other trace as it is.

        Raises:
            RuntimeError: if it does not belong to the last forward trace. Then it cannot run as it is either.
        """
        from thunder.core.trace import TraceTag

        recompute: Recompute | None = getattr(self._waiting, "recompute", None)
        if recompute is None or TraceTag.BACKWARD not in trace.tags:
            return trace
        self._waiting.recompute = None
        return with_sums(trace, recompute)

    def replanned(self, trace: Any, compilers: Compilers, failed: Callable[[str, Exception], None]) -> Any:
        """The trace with its sums brought about as the options say. ``failed`` is told why one stays as it is."""
        try:
            trace = self._without_sums(trace, compilers)
            trace, choices = replanned(trace, self._options.plan, self._options.budget, compilers)
        except Exception as error:
            failed("a residual stream", error)
        else:
            self.choices.extend(choices)
        return trace

    def _without_sums(self, trace: Any, compilers: Compilers) -> Any:
        from thunder.core.trace import TraceTag

        if not self._options.recompute or TraceTag.BACKWARD in trace.tags:
            return trace
        trace, self._waiting.recompute = without_sums(trace, self._options.plan, self._options.budget, compilers)
        if self._waiting.recompute:
            self.choices.extend(self._waiting.recompute.choices)
        return trace
