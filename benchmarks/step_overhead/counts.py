"""What a step calls: functions of Python, functions of torch's, operations, and the statements of Thunder's traces."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def count_calls(step: Callable[[], None]) -> dict[str, int]:
    """Returns how many functions of Python, and of torch's in C++, are called in this thread in one step."""
    counts = {"python": 0, "torch": 0}

    def count(frame: Any, event: str, function: Any) -> None:
        if event == "call":
            counts["python"] += 1
        elif event == "c_call" and _is_of_torch(function):
            counts["torch"] += 1

    sys.setprofile(count)
    try:
        step()
    finally:
        sys.setprofile(None)
    return counts


def _is_of_torch(function: Any) -> bool:
    owner = getattr(function, "__self__", None)
    owner = owner if isinstance(owner, type) else type(owner)
    modules = getattr(function, "__module__", None), getattr(owner, "__module__", None)
    return any(str(module).partition(".")[0] == "torch" for module in modules)


def count_operations(step: Callable[[], None]) -> int:
    """Returns how many operations come to torch's dispatcher in one step, but for those that other ones call.

    It is counted in what torch's profiler saw. With a mode that sees operations, compiled code would not run.
    """
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        step()
    return sum(_is_operation(event) and not _is_within_one(event) for event in profiler.events())


def _is_operation(event: Any) -> bool:
    return str(event.name).startswith("aten::")


def _is_within_one(event: Any) -> bool:
    outer = event.cpu_parent
    while outer is not None and not _is_operation(outer):
        outer = outer.cpu_parent
    return outer is not None


def count_symbols(statistics: Any) -> dict[str, int]:
    """Returns how many statements Thunder's final traces have, beside those that take arguments apart or let go."""
    if statistics is None:
        return {}
    traces = [each[-1] for each in (statistics.last_traces, statistics.last_backward_traces) if each]
    others = ("unpack", "python_del", "python_return", "comment", "clear_mutable")
    names = [symbol.sym.name for trace in traces for symbol in trace.bound_symbols]
    return {"symbols": sum(not name.startswith(others) for name in names)}
