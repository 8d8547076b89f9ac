"""Runs the processes of ``benchmarks/budget``, of both sides in turn."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.budget.sides import Side
from benchmarks.budget.spec import COLD, SECOND, ProcessSpec
from benchmarks.common import processes
from benchmarks.common.processes import say
from benchmarks.common.runner import Run

_WORKER = Path(__file__).with_name("worker.py")

Said = Mapping[str, Mapping[str, Any]]
"""The answers of one side, by the name of the process."""

Pair = Mapping[str, Said]
"""The answers of both sides, by the name of the side."""


@dataclass(frozen=True, slots=True)
class Series:
    """Pairs of runs.

    Attributes:
        sides: the two, each with a folder of its own.
        spec: of all processes, but for ``folder`` and ``process``.
        whole: the benchmark's run, which says how much time is left.
    """

    sides: Sequence[Side]
    spec: ProcessSpec
    whole: Run

    def rehearse(self) -> None:
        """Runs a process whose seconds do not count, so that all others find the libraries in the file cache."""
        with _make_caches() as caches:
            self._call(self.sides[0], COLD, Path(caches), "rehearsal")

    def run(self, repeat: int) -> Iterator[Pair]:
        """Yields the answers of both sides, pair by pair. Every second pair has the sides in the opposite order.

        It ends early if there is less time left than the longest pair took.

        Raises:
            benchmarks.common.processes.ProcessFailed: if a process raised or died, or was ended.
        """
        longest = 0.0
        for number in range(repeat):
            left = self.whole.time_left()
            if number and left is not None and left < longest:
                return
            start = time.monotonic()
            yield self._run_pair(number)
            longest = max(longest, time.monotonic() - start)

    def _run_pair(self, number: int) -> Pair:
        order = self.sides if number % 2 == 0 else self.sides[::-1]
        found: dict[str, dict[str, Any]] = {side.name: {} for side in self.sides}
        with _make_caches() as caches:
            folders = {side.name: Path(caches, side.name) for side in order}
            for side in order:
                folders[side.name].mkdir()
                found[side.name][COLD] = self._call(side, COLD, folders[side.name], f"pair {number + 1}")
            for side, said in zip(order, self._call_second(order, folders, f"pair {number + 1}"), strict=True):
                found[side.name][SECOND] = said
        return found

    def _call_second(
        self, order: Sequence[Side], folders: Mapping[str, Path], about: str
    ) -> Sequence[Mapping[str, Any]]:
        """Returns the answers of both sides' second processes, which take turns.

        A host may be twice as fast in one minute as in the next. So each process of one side comes between two of the
        other.
        """
        ends = [os.pipe(), os.pipe()]
        os.write(ends[0][1], b".")

        def call(place: int, side: Side) -> Mapping[str, Any]:
            turns = ends[place][0], ends[1 - place][1]
            try:
                return self._call(side, SECOND, folders[side.name], about, turns)
            finally:
                # The other process would wait forever for one that has ended.
                for end in turns:
                    os.close(end)

        with ThreadPoolExecutor(len(ends)) as threads:
            calls = [threads.submit(call, place, side) for place, side in enumerate(order)]
            done, _ = wait(calls, return_when=FIRST_EXCEPTION)
            for each in done:
                each.result()
            return [each.result() for each in calls]

    def _call(
        self, side: Side, process: str, caches: Path, about: str, turns: tuple[int, int] | None = None
    ) -> Mapping[str, Any]:
        what = f"{about}, {side.name}, {process} process"
        left = self.whole.time_left()
        if left is not None and left <= 0:
            raise processes.ProcessFailed(f"{what}: there was no time left", "")
        spec = replace(self.spec, folder=str(side.folder), process=process, accelerators=side.accelerators)
        spec = replace(spec, turns=turns) if turns else spec
        where: dict[str, Any] = {"caches": caches, "root": side.folder, "limit": left, "inherited": turns or ()}
        try:
            said: Mapping[str, Any] = processes.call(_WORKER, asdict(spec), **where)
        except processes.ProcessFailed as failure:
            raise processes.ProcessFailed(f"{what}: {failure.message}", failure.log) from None
        say(f"{what}: {', '.join(f'{name} {seconds:.4g} s' for name, seconds in said['seconds'].items())}\n")
        return said


def collect_seconds(said: Said) -> dict[str, float]:
    """Returns the seconds of one side, by figure."""
    return {figure: seconds for each in said.values() for figure, seconds in each["seconds"].items()}


def _make_caches() -> TemporaryDirectory[str]:
    # The compile processes of a process may still write after it has ended.
    return TemporaryDirectory(prefix="fusioncache-budget-", ignore_cleanup_errors=True)
