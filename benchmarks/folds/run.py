"""Measures step by step. What fails is recorded, and the rest still runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.common.results import Outcome, Point, say
from benchmarks.common.tensors import same_bits
from benchmarks.folds.device import Arena, Clock
from benchmarks.folds.kernels import Folds, PointerTables, Way, add_in_turn
from benchmarks.folds.spec import MOST_BYTES, POINTER_TABLE, Step, moved_bytes, plans

Seconds = dict[str, float]
Measurement = Callable[[], Point]

_SAVE_EVERY = 2.0
"""Seconds. Writing hundreds of points is not free, and most steps are short."""
_WRONG = "its sum is not bitwise that of torch"


@dataclass(frozen=True, slots=True)
class Bench:
    """Where and with what is measured.

    Attributes:
        arena: where the terms lie.
        clock: what measures.
        folds: fusioncache's.
        tables: the Triton kernel.
        bandwidth: bytes per second of a copy, the measure of the floor.
    """

    arena: Arena
    clock: Clock
    folds: Folds
    tables: PointerTables
    bandwidth: float

    def points(self, step: Step) -> Iterator[Point]:
        """Yields a point for every way of one step."""
        about = {"kind": step.kind, "dtype": step.dtype, "term_bytes": step.term_bytes, "terms": step.terms}
        try:
            sets = self.arena.sets([step.head, *[step.dtype] * step.terms], step.elements)
            expected = add_in_turn(sets[0])
        except Exception as error:
            yield about | _failure(error)
            return
        for what, measure in self._ways(step, sets, expected):
            yield about | what | _attempt(measure)

    def _ways(self, step: Step, sets: Sequence[Any], expected: Any) -> Iterator[tuple[Point, Measurement]]:
        ways = plans(step.terms) if step.kind == "chain" else {(step.terms,): []}
        for widths, names in ways.items():
            what: Point = {"way": "folds", "plans": names, "folds": list(widths)}
            yield what, partial(self._measure_folds, step, widths, sets, expected)
        for block, ahead in POINTER_TABLE if step.kind == "chain" else ():
            what = {"way": "pointer table", "block": block, "ahead": ahead}
            yield what, partial(self._measure_table, step, block, ahead, sets, expected)

    def _measure_folds(self, step: Step, widths: tuple[int, ...], sets: Sequence[Any], expected: Any) -> Point:
        way = self.folds.way(widths, sets[0])
        moved = moved_bytes(step.elements, step.dtype, widths, step.head)
        return self._measure(step, way, moved, sets, expected)

    def _measure_table(self, step: Step, block: int, ahead: int, sets: Sequence[Any], expected: Any) -> Point:
        way = self.tables.way(sets[0], block, ahead)
        point = self._measure(step, way, step.least_bytes, sets, expected)
        parts = [self.tables.parts(args, block, ahead) for args in sets]
        kernel = self.clock.measure([part["kernel"] for part in parts], point["seconds"]["floor"], 1)
        point["seconds"] |= {"kernel": kernel.run, "table": self.clock.host([part["table"] for part in parts])}
        return point

    def _measure(self, step: Step, way: Way, moved: int, sets: Sequence[Any], expected: Any) -> Point:
        bitwise = same_bits(way.call(sets[0]), expected)
        floor = step.least_bytes / self.bandwidth
        calls = [partial(way.call, args) for args in sets]
        timing = self.clock.measure(calls, moved / self.bandwidth, way.launches)
        seconds = {"run": timing.run, "host": timing.host, "compile": way.compile_seconds, "floor": floor}
        counts = {"launches": way.launches, "moved_bytes": moved, "least_bytes": step.least_bytes}
        point = {**counts, "seconds": seconds, "runs": list(timing.runs), "bitwise": bitwise}
        return point if bitwise else point | {"error": _WRONG}


def run(
    steps: Sequence[Step],
    bench: Bench,
    until: float,
    save: Callable[[Outcome], None],
) -> Outcome:
    """Measures one step after the other.

    Args:
        steps: the most telling first.
        bench: what measures them.
        until: the reading of ``time.perf_counter`` after which no step is begun.
        save: is given the outcome now and then, and at the end.
    """
    outcome, late = Outcome(), []
    saved = time.perf_counter()
    for step in steps:
        start = time.perf_counter()
        if step.needs > min(MOST_BYTES, bench.arena.size):
            outcome.notes.append(f"{step} skipped: its terms take {step.needs / 1e9:.1f} GB")
        elif start > until:
            late.append(str(step))
        else:
            outcome.points += bench.points(step)
            say(f"{step}: {time.perf_counter() - start:.1f} s\n")
            if time.perf_counter() - saved > _SAVE_EVERY:
                save(outcome)
                saved = time.perf_counter()
    if late:
        outcome.notes.append(f"no time was left for {len(late)} of {len(steps)} steps: {'; '.join(late)}")
    save(outcome)
    return outcome


def _attempt(measure: Measurement) -> Point:
    try:
        return measure()
    except Exception as error:
        return _failure(error)


def _failure(error: Exception) -> Point:
    first_line = (str(error).splitlines() or [""])[0]
    return {"error": f"{type(error).__name__}: {first_line}"}
