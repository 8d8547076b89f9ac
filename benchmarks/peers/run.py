"""Runs the processes of the benchmark of peers, in turns, and makes points of what they say."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.common import processes
from benchmarks.common.results import Outcome, Point, say
from benchmarks.peers.spec import PARTS, PEERS, PeerSpec

WORKER = "benchmarks.peers.worker"

_OPTIONS = ("peer", "model", "width", "layers", "inference", "dtype")
_COUNTS = ("kernels", "units", "regions", "graph_breaks", "loads")
_ERRORS = ("worst_tensor", "worst_error", "worst_error_of_eager")


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run.

    Attributes:
        spec: what all points have in common; its peer and layers do not matter.
        peers: of the points.
        layers: of the points.
        repeat: how many times each point is measured; the peers take turns.
        limit: a peer whose last point took more seconds to its cold first step stops there.
    """

    spec: PeerSpec
    peers: Sequence[str]
    layers: Sequence[int]
    repeat: int
    limit: float


@dataclass(frozen=True, slots=True)
class Turn:
    """What the processes of one point said in one turn: a cold one, and a warm one if the peer keeps a cache."""

    cold: Mapping[str, Any]
    warm: Mapping[str, Any] | None


def run(plan: Plan, save: Callable[[Outcome], None], done: Sequence[Point] = ()) -> Outcome:
    """Runs all points.

    Args:
        plan: what to run.
        save: is given the outcome each time that a peer had its turn.
        done: points of an earlier run, which are not run again.
    """
    outcome = Outcome(list(done))
    stopped: set[str] = set()
    for layers in plan.layers:
        there = {point["peer"] for point in done if point["layers"] == layers}
        specs = [replace(plan.spec, layers=layers, peer=peer) for peer in plan.peers if peer not in stopped | there]
        turns: dict[PeerSpec, list[Turn | str]] = {spec: [] for spec in specs}
        earlier, notes = list(outcome.points), list(outcome.notes)
        for _ in range(plan.repeat):
            for spec in specs:
                if any(isinstance(turn, str) for turn in turns[spec]):
                    continue  # it has failed once already
                turns[spec].append(_run_turn(spec))
                outcome.points = [*earlier, *(_point(spec, found) for spec, found in turns.items() if found)]
                outcome.notes = [*notes, *_bitwise([p for p in outcome.points if p["layers"] == layers])]
                save(outcome)
        if layers != plan.layers[-1]:
            stopped |= _stop_slow(outcome, len(earlier), plan.limit)
    save(outcome)
    return outcome


def summarize(values: Sequence[float]) -> dict[str, float]:
    """Returns the median and the quartiles."""
    first, middle, third = quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    return {"median": round(middle, 4), "q1": round(first, 4), "q3": round(third, 4)}


def _run_turn(spec: PeerSpec) -> Turn | str:
    """Runs the processes of one turn, and returns what they said, or how they failed."""
    say(f"{spec}: ")
    start = time.perf_counter()
    with TemporaryDirectory(prefix="fusioncache-peer-") as directory:
        caches = Path(directory)
        try:
            where: dict[str, Any] = {"caches": caches, "environment": PEERS[spec.peer].environment}
            cold = processes.call(WORKER, asdict(spec), **where)
            say(f"{cold['seconds']['total']:.2f} s, {cold['verdict']}")
            warm = None
            if PEERS[spec.peer].keeps_cache:
                warm = processes.call(WORKER, asdict(replace(spec, first_step_only=True)), **where)
                say(f"; warm {warm['seconds']['total']:.2f} s, {warm['verdict']}")
        except processes.ProcessFailed as failure:
            say(f"failed, {failure.format_message()}\n")
            return str(failure)
    say(f"; in all {time.perf_counter() - start:.0f} s\n")
    return Turn(cold, warm)


def _point(spec: PeerSpec, found: Sequence[Turn | str]) -> Point:
    """Returns one point: medians of what its turns said."""
    point: Point = {name: getattr(spec, name) for name in _OPTIONS}
    turns = [turn for turn in found if isinstance(turn, Turn)]
    errors = [turn for turn in found if isinstance(turn, str)]
    if errors:
        return point | {"error": errors[0], "correct": None}
    first = turns[0].cold
    point |= {"repeat": len(turns), "seconds": _seconds(turns)}
    point |= {
        "step_ms": summarize([value for turn in turns for value in turn.cold["step_ms"]]),
        "host_us": first["host_us"] and summarize([us for turn in turns for us in turn.cold["host_us"]]),
        "peak_bytes": first["peak_bytes"] and max(turn.cold["peak_bytes"] for turn in turns),
        **{name: first.get(name) for name in _COUNTS},
        "warm": turns[0].warm and {name: turns[0].warm.get(name) for name in _COUNTS},
        **_correctness(turns),
        "notes": list(dict.fromkeys(note for turn in turns for note in turn.cold["notes"])),
        "repeats": [_repetition(turn) for turn in turns],
    }
    return point


def _seconds(turns: Sequence[Turn]) -> dict[str, Any]:
    warm = [turn.warm for turn in turns if turn.warm]
    return {
        "cold": _medians([turn.cold["seconds"] for turn in turns]),
        "warm": _medians([process["seconds"] for process in warm]) if warm else None,
        "startup": round(median(turn.cold["startup"] for turn in turns), 6),
        "warm_startup": round(median(process["startup"] for process in warm), 6) if warm else None,
    }


def _medians(seconds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {part: round(median(each[part] for each in seconds), 6) for part in PARTS}


def _correctness(turns: Sequence[Turn]) -> dict[str, Any]:
    """Returns the verdict on the first process that was wrong, cold or warm; if none was, on the first."""
    processes_ = [("", turn.cold) for turn in turns] + [("warm: ", turn.warm) for turn in turns if turn.warm]
    where, worst = next(((where, said) for where, said in processes_ if said["correct"] is False), processes_[0])
    digests = {turn.cold["bitwise_digest"] for turn in turns}
    return {
        "correct": worst["correct"],
        "error_of_wrong": f"{where}{worst['verdict']}" if worst["correct"] is False else None,
        **{name: worst.get(name) for name in _ERRORS},
        "bitwise_digest": turns[0].cold["bitwise_digest"] if len(digests) == 1 else "its repetitions differ",
    }


def _repetition(turn: Turn) -> dict[str, Any]:
    warm = turn.warm["seconds"] if turn.warm else None
    return {"cold": turn.cold["seconds"], "warm": warm, "step_ms": summarize(turn.cold["step_ms"])}


def _bitwise(points: Sequence[Point]) -> list[str]:
    """Says whether the peers that can be compared bit for bit are equal."""
    digests = {point["peer"]: point["bitwise_digest"] for point in points if point.get("bitwise_digest")}
    if len(digests) < 2:
        return []
    verdict = "are bitwise equal" if len(set(digests.values())) == 1 else "differ bitwise"
    return [f"{points[0]['layers']} layers: {', '.join(digests)} {verdict}"]


def _stop_slow(outcome: Outcome, start: int, limit: float) -> set[str]:
    """Returns the peers of the last points that are to stop, which is noted."""
    stopped = set()
    for point in outcome.points[start:]:
        seconds = point["seconds"]["cold"]["total"] if "seconds" in point else 0.0
        if seconds > limit:
            stopped.add(point["peer"])
            reason = f"{seconds:.1f} s is over the limit of {limit:g} s"
            outcome.note(f"{point['peer']} stopped at {point['layers']} layers: {reason}")
    return stopped
