"""Runs the points of the scaling benchmark, one after the other, and compares what they computed."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from benchmarks import processes
from benchmarks.spec import Spec

Point = dict[str, Any]
"""A point as it is in the JSON: its options, its counts and seconds, or ``error``."""

_OPTIONS = ("model", "layers", "mode", "recompute", "grad", "backend")


@dataclass(slots=True)
class Outcome:
    """What is known so far.

    Attributes:
        points: in the order in which they were run.
        notes: what was left out, and why.
    """

    points: list[Point] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        """Whether a point failed, or computed something else than the same point in another mode."""
        return any("error" in point for point in self.points)


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

    def specs(self, layers: int, stopped: Container[str]) -> list[Spec]:
        """The points of these layers, without those of modes that have stopped."""
        modes = [mode for mode in self.modes if mode not in stopped and layers <= self.until.get(mode, layers)]
        return [self.spec.at(layers, mode) for mode in modes]


def run(plan: Plan, say: Callable[[str], None], save: Callable[[Outcome], None]) -> Outcome:
    """Runs all points.

    Args:
        plan: what to run.
        say: is told of progress, a line or the beginning of one at a time.
        save: is given the outcome after each point.
    """
    outcome = Outcome()
    stopped: set[str] = set()
    for layers in plan.layers:
        of_these_layers: list[tuple[Spec, dict[str, str]]] = []
        for spec, results in _measured(plan.specs(layers, stopped), plan.repeat, say):
            point, tensors = _summary(spec, results, say)
            of_these_layers.append((spec, tensors))
            outcome.points.append(point)
            _compare(point, of_these_layers, say)
            seconds = point["seconds"]["first_step"] if "seconds" in point else 0.0
            if seconds > plan.limit and layers != plan.layers[-1]:
                stopped.add(spec.mode)
                outcome.notes.append(
                    f"{spec.mode} stopped at {layers} layers: {seconds:.1f} s is over the limit of {plan.limit:g} s"
                )
                say(outcome.notes[-1] + "\n")
        save(outcome)
    return outcome


Result = dict[str, Any] | processes.ProcessFailed


def _measured(specs: Sequence[Spec], repeat: int, say: Callable[[str], None]) -> Iterator[tuple[Spec, list[Result]]]:
    """What the processes of each point said. The points take turns, so that a drift of the machine hits all alike."""
    results: dict[Spec, list[Result]] = {spec: [] for spec in specs}
    for turn in range(repeat):
        for spec in specs:
            say(f"{spec}: ")
            try:
                answer = processes.call("benchmarks.worker", asdict(spec))
            except processes.ProcessFailed as failure:
                results[spec].append(failure)
                say(f"failed, {failure}\n{failure.log}\n")
            else:
                results[spec].append(answer)
                say(f"{answer['seconds']['first_step']:.2f} s, {answer['compiles']} compiles\n")
            if turn == repeat - 1:
                yield spec, results[spec]


def _summary(spec: Spec, results: list[Result], say: Callable[[str], None]) -> tuple[Point, dict[str, str]]:
    """A point, with the median of each phase's seconds over its processes, and digests of what it computed."""
    point: Point = {name: value for name, value in asdict(spec).items() if name in _OPTIONS}
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
    """Of each figure; of the memory and of what was compiled, the largest."""
    most = ("before", "peak", "compiles")
    every = {name: [figures[name] for figures in steady] for name in steady[0]}
    return {
        name: None if None in values else max(values) if name in most else round(median(values), 7)
        for name, values in every.items()
    }


def _compare(point: Point, ran: Sequence[tuple[Spec, dict[str, str]]], say: Callable[[str], None]) -> None:
    """Marks a point, the last of those that ran, if it differs from the first that it must equal."""
    spec, tensors = ran[-1]
    reference, expected = next(
        ((other, found) for other, found in ran if found and spec.must_equal(other)), (spec, tensors)
    )
    if not tensors or tensors == expected:
        return
    names = [name for name in _all_names(tensors, expected) if tensors.get(name) != expected.get(name)]
    point["error"] = (
        f"{len(names)} of {len(expected)} results differ from those of {reference.mode}, the first is {names[0]}"
    )
    say(f"{point['mode']}: {point['error']}\n")


def _all_names(*tensors: Iterable[str]) -> Iterator[str]:
    return iter(dict.fromkeys(name for names in tensors for name in names))
