"""What becomes of the residual streams of a trace, by the user's options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fusioncache.accelerators.residual.chaining import replan_streams
from fusioncache.accelerators.residual.fused_calls import Compilers
from fusioncache.accelerators.residual.plans import Choice, ResidualPlan
from fusioncache.accelerators.residual.recompute import Recompute, drop_sums


@dataclass(frozen=True, slots=True)
class ResidualOptions:
    """What the user asked for.

    Attributes:
        recompute: whether sums that backward can rebuild are not saved for it.
        plan: the plan for all streams; None for the cheapest of each.
        budget: how many bytes of a stream's sums may be kept alive; None for as many as the plan keeps.
    """

    recompute: bool
    plan: ResidualPlan | None
    budget: int | None

    @classmethod
    def of(cls, recompute: str | None, residual: str, memory_budget: int | None) -> ResidualOptions:
        """Returns the options of ``FusionCache``.

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


@dataclass(frozen=True, slots=True)
class PlannedStreams:
    """A trace whose residual streams come about as the options say.

    Attributes:
        trace: the new trace, or the old one if nothing changes.
        choices: what was chosen for each stream, with what the alternatives would have cost.
        recompute: what the backward trace must rebuild, if this is a forward trace that saves less now.
    """

    trace: Any
    choices: tuple[Choice, ...] = ()
    recompute: Recompute | None = None


def plan_streams(
    trace: Any, options: ResidualOptions, compilers: Compilers, report_failure: Callable[[str, Exception], None]
) -> PlannedStreams:
    """Plans the residual streams of a trace. What fails stays as it is, and ``report_failure`` is told why."""
    from fusioncache.thunder_adapter.api import TraceTag

    planned = PlannedStreams(trace)
    try:
        if options.recompute and TraceTag.BACKWARD not in trace.tags:
            trace, recompute = drop_sums(trace, options.plan, options.budget, compilers)
            planned = PlannedStreams(trace, recompute.choices if recompute else (), recompute)
        trace, choices = replan_streams(trace, options.plan, options.budget, compilers)
        return PlannedStreams(trace, (*planned.choices, *choices), planned.recompute)
    except Exception as error:
        report_failure("a residual stream", error)
        return planned
