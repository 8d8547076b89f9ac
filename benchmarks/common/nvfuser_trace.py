"""What nvFuser says of each call where ``NVFUSER_TRACE`` is set: how often it was in a function, and how many seconds.

The file is in Chrome's format: when each of its functions was entered and left, in microseconds, by thread.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "NVFUSER_TRACE"

_EVENT = re.compile(r'\{ "name": "(.*)", "ph": "([BE])", "pid": \d+, "tid": (\d+), "ts": (\d+)')

_CALL = "FusionExecutorCache::runFusionWithInputs"
_SEGMENT = "SegmentCandidateFinder::findSegments"
_KERNEL = "FusionKernelRuntime::compileKernel"
_CODE = "KernelExecutor::compile"
_NVRTC = "executor_utils::NVRTC"


@dataclass(slots=True)
class Scope:
    """A function in one call.

    Attributes:
        count: how often it was entered.
        seconds: in it, calls of it by itself counted once.
    """

    count: int = 0
    seconds: float = 0.0


def read_calls(file: Path) -> Iterator[dict[str, Scope]]:
    """Returns the functions of each call of a definition, in their order. What other threads did meanwhile counts."""
    stacks: dict[str, list[tuple[str, float]]] = defaultdict(list)
    scopes: dict[str, Scope] = defaultdict(Scope)
    for name, thread, moment, is_begin in _read_events(file):
        stack = stacks[thread]
        if is_begin:
            stack.append((name, moment))
        elif stack:
            name, begin = stack.pop()
            scope = scopes[name]
            scope.count += 1
            if all(name != outer for outer, _ in stack):
                scope.seconds += moment - begin
                if name == _CALL:
                    yield dict(scopes)
                    scopes.clear()


def _read_events(file: Path) -> Iterator[tuple[str, str, float, bool]]:
    """Returns each event: the function's name, the thread, the moment in seconds, and whether that is its begin."""
    with file.open(errors="replace") as lines:
        for found in filter(None, map(_EVENT.match, lines)):
            yield found[1], found[3], int(found[4]) / 1e6, found[2] == "B"


def split_stages(seconds: Mapping[str, float]) -> dict[str, float]:
    """Returns the seconds by stage, of those by function.

    ``segment``: which operations become one kernel, for which it tries schedulers on many candidates; ``schedule``: how
    a kernel is laid out; ``lower``: its CUDA is generated; ``nvrtc``: that is compiled; ``rest``: what else its calls
    take, execution included. Kernels of one definition may be compiled on several threads at once: their times add up.
    """
    call, segment, kernel, code, nvrtc = (seconds.get(name, 0.0) for name in (_CALL, _SEGMENT, _KERNEL, _CODE, _NVRTC))
    parts = {"segment": segment, "schedule": kernel - code, "lower": code - nvrtc, "nvrtc": nvrtc}
    return {**parts, "rest": call - sum(parts.values())}
