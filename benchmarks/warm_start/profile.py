"""Where nvFuser's seconds go: the trace that it writes where ``NVFUSER_TRACE`` says, summed up by stages.

The file is in Chrome's format: when each of its functions was entered and left, in microseconds, by thread.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

VARIABLE = "NVFUSER_TRACE"

_EVENT = re.compile(r'\{ "name": "(.*)", "ph": "([BE])", "pid": \d+, "tid": (\d+), "ts": (\d+)')

_WHOLE = "FusionExecutorCache::runFusionWithInputs"
_SEGMENT = "SegmentCandidateFinder::findSegments"
_KERNEL = "FusionKernelRuntime::compileKernel"
_CODE = "KernelExecutor::compile"
_NVRTC = "executor_utils::NVRTC"


def sum_stages(file: Path) -> dict[str, float]:
    """Returns the seconds by stage.

    ``segment``: which operations become one kernel, for which it tries schedulers on many candidates; ``schedule``: how
    a kernel is laid out; ``lower``: its CUDA is generated; ``nvrtc``: that is compiled; ``rest``: what else its calls
    take, execution included. Kernels of one definition may be compiled on several threads at once: their times add up.
    """
    inside = _inclusive(file)
    parts = {
        "segment": inside[_SEGMENT],
        "schedule": inside[_KERNEL] - inside[_CODE],
        "lower": inside[_CODE] - inside[_NVRTC],
        "nvrtc": inside[_NVRTC],
    }
    return {**parts, "rest": inside[_WHOLE] - sum(parts.values())}


def _inclusive(file: Path) -> dict[str, float]:
    """Returns the seconds in each function, calls of a function by itself counted once."""
    seconds: dict[str, float] = defaultdict(float)
    entered: dict[tuple[str, str], list[float]] = defaultdict(list)
    for name, thread, moment, is_begin in read_events(file):
        stack = entered[thread, name]
        if is_begin:
            stack.append(moment)
        elif stack:
            begin = stack.pop()
            if not stack:
                seconds[name] += moment - begin
    return seconds


def read_events(file: Path) -> Iterator[tuple[str, str, float, bool]]:
    """Returns each event: the function's name, the thread, the moment in seconds, and whether that is its begin."""
    with file.open(errors="replace") as lines:
        for found in filter(None, map(_EVENT.match, lines)):
            yield found[1], found[3], int(found[4]) / 1e6, found[2] == "B"
