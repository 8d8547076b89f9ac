"""Memory full of terms, and the time of calls that find them outside of the cache."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from math import ceil
from statistics import median
from typing import Any

from benchmarks.folds.spec import ITEM_BYTES, MB, count_copies

COLUMNS = 4096
"""Of every tensor, as those of a model have two dimensions."""

_COPIED = 2048 * MB
_RUNS = 20
_FEWEST_RUNS = 7
_HOST_RUNS = 7
_SECONDS = 0.06
"""For the runs of one way, roughly: long ones are repeated less often, as they differ less."""
_SPAN = 50e-6
"""Seconds between two events, at least: short calls are timed together, as an event takes a microsecond itself."""
_LAUNCHES = 400
"""Between two events, at most. The queue to the device holds about a thousand."""
_CYCLES = 2e9
"""Of the device's clock in a second, at most."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Medians, in seconds.

    Attributes:
        run: of a call on the device, with the host ahead of it.
        host: until a call is issued.
        runs: how many times ``run`` was measured, and of how many calls each is the average.
    """

    run: float
    host: float
    runs: tuple[int, int]


class Clock:
    """A clock measures calls. It keeps the device busy until the host has issued what is timed."""

    def measure(self, calls: Sequence[Callable[[], Any]], expected: float, launches: int) -> Timing:
        """Returns the time of one call; these take turns.

        Args:
            calls: the same on different tensors.
            expected: seconds of one on the device, roughly.
            launches: kernels of one.
        """
        import torch

        for call in calls[:3]:
            call()
        host = self.host(calls)
        together = max(1, min(ceil(_SPAN / expected), _LAUNCHES // launches))
        runs = max(_FEWEST_RUNS, min(_RUNS, int(_SECONDS / (expected * together))))
        turn, seconds = cycle(calls), []
        for _ in range(runs):
            before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(int((2 * host * together + _SPAN) * _CYCLES))
            before.record()
            for call in islice(turn, together):
                call()
            after.record()
            after.synchronize()
            seconds.append(before.elapsed_time(after) / 1e3 / together)
        return Timing(median(seconds), host, (runs, together))

    def host(self, calls: Sequence[Callable[[], Any]]) -> float:
        """Returns the seconds until one of these is issued."""
        import torch

        seconds = []
        for call in islice(cycle(calls), _HOST_RUNS):
            torch.cuda.synchronize()
            start = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - start)
        torch.cuda.synchronize()
        return median(seconds)


class Arena:
    """One piece of memory that all tensors are cut from, so that none has to be filled anew.

    Args:
        size: bytes.
        device: where.
        cold: bytes after which nothing of the first is left in the cache.
    """

    def __init__(self, size: int, device: str, cold: int):
        import torch

        self._cold = cold
        self._memory = torch.empty(size // 512 * 512, dtype=torch.uint8, device=device)
        # The same bits are read as float32, too: one bfloat16 then is its upper half, and the other rounds off.
        for part in self._memory.view(torch.bfloat16).split(2**30):
            part.normal_()

    @property
    def size(self) -> int:
        """The size in bytes."""
        return self._memory.numel()

    def sets(self, dtypes: Sequence[str], elements: int) -> list[list[Any]]:
        """Returns as many sets of tensors as calls must take in turn to find none of theirs in the cache."""
        import torch

        needed = elements * sum(ITEM_BYTES[dtype] for dtype in dtypes)
        if needed > self.size:
            raise ValueError(f"{needed} bytes are needed, and there are {self.size}")
        found: list[list[Any]] = []
        offset = 0
        for _ in range(count_copies(needed, self._cold, self.size)):
            found.append([])
            for dtype in dtypes:
                end = offset + elements * ITEM_BYTES[dtype]
                found[-1].append(self._memory[offset:end].view(getattr(torch, dtype)).view(-1, COLUMNS))
                offset = end
        return found

    def copy_seconds(self, clock: Clock) -> tuple[int, float]:
        """Returns the bytes that a large copy reads and writes, and its seconds."""
        import torch

        source = self._memory[: min(_COPIED, self.size)]
        target = torch.empty_like(source)
        moved = 2 * source.numel()
        return moved, clock.measure([lambda: target.copy_(source)], moved / 4e12, 1).run
