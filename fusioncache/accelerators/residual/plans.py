"""The plans for the sums of a residual stream, their costs, and the choice among them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


class ResidualPlan(Enum):
    """How the partial sums of one residual stream get to the regions that want them.

    ``INLINE``: each region adds up its own sum, in its own kernel.
    ``FOLD``: each region's sum is added up by kernels of a few fixed widths.
    ``CARRY``: a sum is passed on, and the next one starts from it.
    ``SEGMENTED``: every k-th sum is kept, and the ones between are rebuilt from it, a segment at a time.
    """

    INLINE = "inline"
    FOLD = "fold"
    CARRY = "carry"
    SEGMENTED = "segmented"


@dataclass(frozen=True, slots=True)
class Cost:
    """What a plan costs.

    Attributes:
        moved: bytes read and written for the sake of the stream, beyond what any plan must.
        alive: bytes of sums that are kept alive at once, at most.
        kernels: how many kernels are compiled.
    """

    moved: int
    alive: int
    kernels: int


@dataclass(frozen=True, slots=True)
class Choice:
    """What was chosen for a stream, and what the alternatives would have cost.

    Attributes:
        stream: the name of the value that it starts from.
        sums: how many partial sums are wanted.
        plan: the one that is used.
        costs: of each plan that could have been.
    """

    stream: str
    sums: int
    plan: ResidualPlan
    costs: Mapping[ResidualPlan, Cost]

    def __str__(self) -> str:
        lines = [f"stream from {self.stream}, {self.sums} sums: {self.plan.value}"]
        for plan, cost in self.costs.items():
            figures = f"{cost.moved:>15,} B moved {cost.alive:>15,} B alive {cost.kernels:>4} kernels"
            lines.append(f"  {plan.value:<9} {figures}")
        return "\n".join(lines)


_FEW_KERNELS = 8


def choose(
    costs: Mapping[ResidualPlan, Cost], wanted: ResidualPlan | None = None, budget: int | None = None
) -> ResidualPlan:
    """Chooses the plan for a stream.

    Args:
        costs: of the plans that there are.
        wanted: what the user asked for; it is taken if it is among these.
        budget: how many bytes of sums may be kept alive. With a budget, the plan within it that moves least is taken,
            and if no plan is within it, the one that keeps least alive. Without a budget, the one is taken that keeps
            least alive among those that are linear in depth. These move at most four times what the cheapest moves, or
            four times the bytes of all sums, whichever is more, and compile at most a few kernels more than the fewest.
    """
    if wanted is not None and wanted in costs:
        return wanted
    if budget is not None:
        within = [plan for plan, cost in costs.items() if cost.alive <= budget]
        if within:
            return min(within, key=lambda plan: (costs[plan].moved, costs[plan].alive, costs[plan].kernels))
        return min(costs, key=lambda plan: (costs[plan].alive, costs[plan].moved, costs[plan].kernels))
    most = 4 * max(min(cost.moved for cost in costs.values()), max(cost.alive for cost in costs.values()))
    few = _FEW_KERNELS + min(cost.kernels for cost in costs.values())
    linear = [plan for plan, cost in costs.items() if cost.moved <= most and cost.kernels <= few] or list(costs)
    return min(linear, key=lambda plan: (costs[plan].alive, costs[plan].moved, costs[plan].kernels))
