"""Runs the points of the scaling benchmark, one after the other, and compares what they computed."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.common import processes
from benchmarks.common.results import Outcome, Point, say
from benchmarks.scaling.spec import KEPT, Spec

REFERENCE = "uncached"
"""The mode whose results are the right ones, where it runs."""
_OPTIONS = ("model", "layers", "mode", "recompute", "grad", "backend")


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run.

    Attributes:
        spec: what all points have in common; its layers and mode do not matter.
        layers: of the points.
        modes: of the points. They take turns, so that a machine that slows down does so for all of them.
        repeat: how many processes measure a point.
        limit: a mode whose last point took more seconds to its first step stops there.
        until: the deepest point of some modes.
    """

    spec: Spec
    layers: Sequence[int]
    modes: Sequence[str]
    repeat: int
    limit: float
    until: Mapping[str, int] = field(default_factory=dict)

    def specs(self, layers: int, stopped: Container[str]) -> list[tuple[Spec, str | None]]:
        """Returns all points of these layers, each with the reason not to run it."""
        first, second = KEPT
        reasons: dict[str, str | None] = {}
        for mode in self.modes:
            if mode == second and reasons[first]:
                reasons[mode] = reasons[first]  # there is nothing that it could find
            elif layers > self.until.get(mode, layers):
                reasons[mode] = "not asked for"
            else:
                reasons[mode] = "too slow" if mode in stopped else None
        return [(self.spec.at(layers, mode), reason) for mode, reason in reasons.items()]


def run(plan: Plan, outcome: Outcome, save: Callable[[Outcome], None]) -> Outcome:
    """Runs all points. One that is not run has the reason as ``not_run``.

    Args:
        plan: what to run.
        outcome: what the points are added to.
        save: is given the outcome after each number of layers.
    """
    stopped: set[str] = set()
    for layers in plan.layers:
        of_these_layers: list[tuple[Spec, dict[str, str]]] = []
        specs = plan.specs(layers, stopped)
        for spec, results in _measure([spec for spec, reason in specs if not reason], plan.repeat):
            point, tensors = _summarize(spec, results)
            of_these_layers.append((spec, tensors))
            outcome.points.append(point)
            _compare(point, of_these_layers)
            seconds = point["seconds"]["first_step"] if "seconds" in point else 0.0
            if seconds > plan.limit and layers != plan.layers[-1]:
                stopped.add(spec.mode)
                reason = f"{seconds:.1f} s is over the limit of {plan.limit:g} s"
                outcome.note(f"{spec.mode} stopped at {layers} layers: {reason}")
        _mark_equal(outcome.points[-len(of_these_layers) :], of_these_layers)
        outcome.points += [_options(spec) | {"not_run": reason} for spec, reason in specs if reason]
        save(outcome)
    return outcome


Result = dict[str, Any] | processes.ProcessFailed


def _measure(specs: Sequence[Spec], repeat: int) -> Iterator[tuple[Spec, list[Result]]]:
    """Yields what the processes of each point said. They take turns, so that a drift of the machine hits all alike."""
    results: dict[Spec, list[Result]] = {spec: [] for spec in specs}
    for turn in range(repeat):
        with TemporaryDirectory(prefix="fusioncache-kept-") as kept:
            for spec in specs:
                results[spec].append(_ask(spec, Path(kept) if spec.mode in KEPT else None))
                if turn == repeat - 1:
                    yield spec, results[spec]


def _ask(spec: Spec, caches: Path | None) -> Result:
    """Returns what a process of this point said, or how it failed."""
    say(f"{spec}: ")
    where: dict[str, Any] = {"caches": caches, "environment": {"FUSIONCACHE_STORE": "1"}}
    try:
        answer = processes.call("benchmarks.scaling.worker", asdict(spec), **where)
    except processes.ProcessFailed as failure:
        say(f"failed, {failure.format_message()}\n")
        return failure
    loads = f", {answer['loads']} loads" if answer.get("loads") else ""
    say(f"{answer['seconds']['first_step']:.2f} s, {answer['compiles']} compiles{loads}\n")
    return answer


def _options(spec: Spec) -> Point:
    return {name: getattr(spec, name) for name in _OPTIONS}


def _summarize(spec: Spec, results: list[Result]) -> tuple[Point, dict[str, str]]:
    """Returns a point, with the median of each phase's seconds over its processes, and digests of what it computed."""
    point = _options(spec)
    for failure in results:
        if isinstance(failure, processes.ProcessFailed):
            return point | {"error": str(failure)}, {}
    measured = [result for result in results if not isinstance(result, processes.ProcessFailed)]
    tensors = measured[0].pop("tensors")
    point |= measured[0]
    every = [result["seconds"] for result in measured]
    point["seconds"] = {phase: median(seconds[phase] for seconds in every) for phase in every[0]}
    if "canonicalize" in point["seconds"]:
        point["share"] = round(point["seconds"]["canonicalize"] / point["seconds"]["first_step"], 6)
    if "steady" in point:
        point["steady"] = _medians([result["steady"] for result in measured])
    point |= {"repeat": len(measured), "repeats": every}
    if any(result["checksum"] != point["checksum"] for result in measured):
        point["error"] = "its repetitions computed different results"
        say(f"{spec}: {point['error']}\n")
    return point, tensors


def _medians(steady: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns the median of each figure; of the memory and of what was compiled, the largest."""
    most = ("before", "peak", "compiles")
    every = {name: [figures[name] for figures in steady] for name in steady[0]}
    return {
        name: None if None in values else max(values) if name in most else round(median(values), 7)
        for name, values in every.items()
    }


def _compare(point: Point, ran: Sequence[tuple[Spec, dict[str, str]]]) -> None:
    """Marks a point, the last of those that ran, if it differs from the first that it must equal."""
    spec, tensors = ran[-1]
    reference, expected = next(
        ((other, found) for other, found in ran if found and spec.must_equal(other)), (spec, tensors)
    )
    if not tensors or tensors == expected:
        return
    names = [name for name in dict.fromkeys([*tensors, *expected]) if tensors.get(name) != expected.get(name)]
    point["error"] = (
        f"{len(names)} of {len(expected)} results differ from those of {reference.mode}, the first is {names[0]}"
    )
    say(f"{point['mode']}: {point['error']}\n")


def _mark_equal(points: Sequence[Point], ran: Sequence[tuple[Spec, dict[str, str]]]) -> None:
    """Says of each point whether its results are those of the reference, or of the first that has any, bit for bit.

    Args:
        points: of one number of layers.
        ran: the spec and the results of each.
    """
    found = {spec.mode: (spec, tensors) for spec, tensors in ran if tensors}
    if len(found) < 2:
        return
    name = REFERENCE if REFERENCE in found else next(iter(found))
    reference, expected = found[name]
    for point in points:
        if point["mode"] in found:
            spec, tensors = found[point["mode"]]
            same = {"equal": tensors == expected, "must_be": spec.must_equal(reference)}
            point["bitwise"] = {"to": name, "results": len(expected), **same}
