"""Runs the processes of the benchmark of memory, one after the other, and sets each plan against the reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from benchmarks.common import processes
from benchmarks.common.results import Outcome, Point, say
from benchmarks.memory.spec import REFERENCE, MemorySpec

WORKER = "benchmarks.memory.worker"

_OPTIONS = ("model", "plan", "budget", "sequence", "batch", "dtype")
_NAMES_KEPT = 10


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run.

    Attributes:
        spec: what all points have in common; its model, plan and budget do not matter.
        models: of the points.
        plans: of the points. The reference is run first, asked for or not.
        budgets: of further points with the plan ``"auto"``, in MiB.
    """

    spec: MemorySpec
    models: Sequence[str]
    plans: Sequence[str]
    budgets: Sequence[int]

    def specs(self, model: str) -> list[MemorySpec]:
        """Returns the points of a model."""
        plans: list[tuple[str, int | None]] = [(plan, None) for plan in dict.fromkeys((REFERENCE, *self.plans))]
        plans += [("auto", budget) for budget in self.budgets]
        return [replace(self.spec, model=model, plan=plan, budget=budget) for plan, budget in plans]


def run(plan: Plan, save: Callable[[Outcome], None]) -> Outcome:
    """Runs all points.

    Args:
        plan: what to run.
        save: is given the outcome after each point.
    """
    outcome = Outcome()
    for model in plan.models:
        reference: Mapping[str, Any] | None = None
        for spec in plan.specs(model):
            found = _measure(spec)
            if spec.plan == REFERENCE and "error" not in found:
                reference = found
            outcome.points.append(_point(spec, found, reference))
            save(outcome)
    return outcome


def _measure(spec: MemorySpec) -> dict[str, Any]:
    """Returns what the process said, or how it failed."""
    say(f"{spec}: ")
    try:
        found: dict[str, Any] = processes.call(WORKER, asdict(spec))
    except processes.ProcessFailed as failure:
        late = "SIGALRM" in str(failure)
        error = f"not done within {spec.seconds} s" if late else str(failure)
        say(f"failed, {error}\n{'' if late else failure.log}\n")
        return {"error": error}
    say(f"first step {found['first_step']:.1f} s, step {1e3 * found['steady']['step']:.1f} ms\n")
    return found


def _point(spec: MemorySpec, found: Mapping[str, Any], reference: Mapping[str, Any] | None) -> Point:
    point: Point = {name: getattr(spec, name) for name in _OPTIONS}
    point |= {"name": spec.name, **found}
    if "error" in found:
        return point
    differing = None if reference is None else find_differences(found["tensors"], reference["tensors"])
    return point | {
        "not_finite": found["not_finite"][:_NAMES_KEPT],
        "tensors": len(found["tensors"]),
        "correct": not differing,
        "bitwise": None if differing is None else len(found["tensors"]) - len(differing),
        "differing": (differing or [])[:_NAMES_KEPT],
        "against": None if reference is None else set_against(found, reference),
    }


def find_differences(tensors: Mapping[str, str], expected: Mapping[str, str]) -> list[str]:
    """Returns the names under which there is something else, by digests."""
    return [name for name in dict.fromkeys([*expected, *tensors]) if tensors.get(name) != expected.get(name)]


def set_against(found: Mapping[str, Any], reference: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the trade: bytes less than the reference's, and its seconds divided into ours."""
    ours, theirs = found["steady"], reference["steady"]
    peak = None if ours["peak"] is None or theirs["peak"] is None else theirs["peak"] - ours["peak"]
    times = {name: round(ours[name] / theirs[name], 4) for name in ("forward", "backward", "step")}
    return {"saved": reference["saved"] - found["saved"], "peak": peak, **times}
