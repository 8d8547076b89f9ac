"""What happens in a process while it takes a step: collections, compilations, memory, time in which it does not run.

Counters are read before and behind a step, outside of what is timed.
"""

from __future__ import annotations

import gc
import resource
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_LEAST = 0.0002
"""Seconds that a step may be longer than its thread ran without a word: clocks are read one after the other."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Counters of the process at one moment.

    Attributes:
        collections: garbage collections so far, by generation.
        collecting: the seconds they took.
        compiles: functions that were compiled or loaded so far.
        segments: pieces of memory that torch asked CUDA for so far.
        faults: page faults that read a disk, and others.
        switches: how often the thread waited for something, and how often another one took its place.
        running: seconds that the thread ran.
    """

    collections: tuple[int, ...]
    collecting: float
    compiles: int
    segments: int
    faults: tuple[int, int]
    switches: tuple[int, int]
    running: float


class Counters:
    """Reads the counters of this process. From its making on collections are counted."""

    def __init__(self) -> None:
        import torch

        self.compiles = 0
        self._counts = [0, 0, 0]
        self._collecting = self._began = 0.0
        self._has_gpu = torch.cuda.is_available()
        gc.callbacks.append(self._hear)

    def note_compile(self, *_: Any) -> None:
        """Counts something that was compiled or loaded."""
        self.compiles += 1

    def _hear(self, phase: str, info: Mapping[str, int]) -> None:
        if phase == "start":
            self._began = time.perf_counter()
        else:
            self._counts[info["generation"]] += 1
            self._collecting += time.perf_counter() - self._began

    def read(self) -> Reading:
        """Returns the counters now."""
        used = resource.getrusage(resource.RUSAGE_THREAD)
        return Reading(
            collections=tuple(self._counts),
            collecting=self._collecting,
            compiles=self.compiles,
            segments=self._count_segments(),
            faults=(used.ru_majflt, used.ru_minflt),
            switches=(used.ru_nvcsw, used.ru_nivcsw),
            running=time.thread_time(),
        )

    def _count_segments(self) -> int:
        if not self._has_gpu:
            return 0
        import torch

        return int(torch.cuda.memory_stats_as_nested_dict()["segment"]["all"]["allocated"])


def explain(before: Reading, after: Reading, seconds: float) -> dict[str, float]:
    """Returns what happened in a step that took so long: counts, and milliseconds, by name. Zeros are left out."""
    old, new = before.collections, after.collections
    found = {f"collections of generation {each}": new[each] - old[each] for each in range(3)}
    found |= {"compiled or loaded": after.compiles - before.compiles, "CUDA segments": after.segments - before.segments}
    for name, kind in (("page faults from disk", 0), ("page faults", 1)):
        found[name] = after.faults[kind] - before.faults[kind]
    for name, kind in (("waits", 0), ("times another thread ran", 1)):
        found[name] = after.switches[kind] - before.switches[kind]
    idle = seconds - (after.running - before.running)
    collecting = after.collecting - before.collecting
    milliseconds = {"ms collecting": collecting, "ms not running": idle if idle > _LEAST else 0.0}
    return {name: value for name, value in found.items() if value} | {
        name: round(1e3 * value, 3) for name, value in milliseconds.items() if value > 0
    }
