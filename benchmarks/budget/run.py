"""Runs the processes of ``benchmarks/budget``, of both sides in turn."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.budget.sides import Side
from benchmarks.budget.spec import COLD, SECOND, ProcessSpec
from benchmarks.common import processes
from benchmarks.common.processes import print_progress
from benchmarks.common.runner import Run

_WORKER = Path(__file__).with_name("worker.py")

Results = Mapping[str, Mapping[str, Any]]
"""The answers of one side, by the name of the process."""

Pair = Mapping[str, Results]
"""The answers of both sides, by the name of the side."""


@dataclass(frozen=True, slots=True)
class Series:
    """Pairs of runs.

    Attributes:
        sides: the two sides, each with a folder of its own.
        spec: of all processes, without ``folder`` and ``process``.
        benchmark: the benchmark's run, which has the time limit.
    """

    sides: Sequence[Side]
    spec: ProcessSpec
    benchmark: Run

    def rehearse(self) -> None:
        """Runs an unmeasured process, so that all others find the libraries in the file cache."""
        with _make_caches() as caches:
            self._call_cold(self.sides[0], Path(caches), "rehearsal")

    def run(self, repeat: int) -> Iterator[Pair]:
        """Yields the answers of both sides, pair by pair. Every second pair runs the sides in the opposite order.

        It ends early if less time is left than the longest pair took.

        Raises:
            benchmarks.common.processes.ProcessFailed: if a process raised or died, or was ended.
        """
        longest = 0.0
        for number in range(repeat):
            left = self.benchmark.time_left()
            if number and left is not None and left < longest:
                return
            start = time.monotonic()
            yield self._run_pair(number)
            longest = max(longest, time.monotonic() - start)

    def _run_pair(self, number: int) -> Pair:
        order = self.sides if number % 2 == 0 else self.sides[::-1]
        about, found = f"pair {number + 1}", dict[str, dict[str, Any]]()
        with _make_caches() as caches:
            folders = {side.name: Path(caches, side.name) for side in order}
            for side in order:
                folders[side.name].mkdir()
                found[side.name] = {COLD: self._call_cold(side, folders[side.name], about)}
            variables = [processes.environment_in(str(folders[side.name]), side.folder) for side in order]
            specs = [self._make_spec(side, SECOND, each) for side, each in zip(order, variables, strict=True)]
            answers = self._call({"specs": specs}, f"{about}, second processes", order[0], Path(caches))
            for side, result in zip(order, answers, strict=True):
                found[side.name][SECOND] = result
                _print_seconds(f"{about}, {side.name}, second processes", result)
        return found

    def _call_cold(self, side: Side, caches: Path, about: str) -> Mapping[str, Any]:
        what = f"{about}, {side.name}, cold process"
        result: Mapping[str, Any] = self._call(self._make_spec(side, COLD, {}), what, side, caches)
        _print_seconds(what, result)
        return result

    def _make_spec(self, side: Side, process: str, variables: Mapping[str, str]) -> dict[str, Any]:
        about: dict[str, Any] = {"folder": str(side.folder), "process": process, "accelerators": side.accelerators}
        return asdict(replace(self.spec, **about, variables=variables))

    def _call(self, argument: Mapping[str, Any], what: str, side: Side, caches: Path) -> Any:
        left = self.benchmark.time_left()
        if left is not None and left <= 0:
            raise processes.ProcessFailed(f"{what}: there was no time left", "")
        try:
            return processes.call(_WORKER, argument, caches=caches, root=side.folder, limit=left)
        except processes.ProcessFailed as failure:
            raise processes.ProcessFailed(f"{what}: {failure.message}", failure.log) from None


def _print_seconds(what: str, result: Mapping[str, Any]) -> None:
    print_progress(f"{what}: {', '.join(f'{name} {seconds:.4g} s' for name, seconds in result['seconds'].items())}\n")


def collect_seconds(pairs: Sequence[Pair], names: tuple[str, str], figure: str) -> list[tuple[float, float]]:
    """Returns the seconds of two sides for one figure: of each cold or second process with its neighbour.

    Pairs with 0 seconds on the second side are left out: no full garbage collection fell into a first step.
    """
    ours, theirs = ([each for pair in pairs for each in _list_seconds(pair[name], figure)] for name in names)
    return [(first, second) for first, second in zip(ours, theirs, strict=True) if second]


def _list_seconds(results: Results, figure: str) -> list[float]:
    return [each[figure] for each in (results[COLD]["seconds"], *results[SECOND]["each"]) if figure in each]


def _make_caches() -> TemporaryDirectory[str]:
    # Compile workers of a process may still write after it has ended.
    return TemporaryDirectory(prefix="fusioncache-budget-", ignore_cleanup_errors=True)
