"""Code of others in Thunder's tables, and whether Thunder ran any of it while it derived a program.

Thunder runs what is in its tables as it is: nothing records what that looks up. What others put there is in each key,
but what it does matters to those programs alone for which it runs. So an operation that one model registers refuses the
programs that call it, and no others.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Collection, Mapping
from types import CodeType
from typing import Any

from fusioncache.ir.errors import Declined, Scope
from fusioncache.process import forks

type Foreign = Mapping[str, tuple[CodeType, ...] | None]
"""What others wrote, by its place: the code of functions, and None for what cannot be watched, such as classes."""

_TOOLS = (3, 4, 2, 5)
"""Numbers in ``sys.monitoring``, first those that are for nothing in particular. Debuggers and coverage have others."""

_lock = forks.lock()
_tool: int | None = None
"""The number that we have while anything is watched."""
_watchers: Counter[int] = Counter()
_runs: Counter[int] = Counter()
"""How many watch a code object, and how often it ran meanwhile, by its identity: equal ones are watched each."""


def add_foreign(known: dict[str, tuple[CodeType, ...] | None], more: Foreign) -> None:
    """Adds what others wrote to what is known of it. Several functions may have one place."""
    for place, codes in more.items():
        before = known.get(place, ())
        known[place] = None if before is None or codes is None else (*before, *codes)


class ForeignRuns:
    """Notices whether code of others runs, from when this is made until ``end``, or until it is dropped.

    Args:
        foreign: what may run.
    """

    __slots__ = ("__weakref__", "_before", "_end", "_foreign")

    def __init__(self, foreign: Foreign):
        self._foreign = foreign
        codes = {id(code): code for each in foreign.values() for code in each or ()}
        self._end: weakref.finalize[..., ForeignRuns] | None = None
        if codes and _watch(codes.values()):
            self._end = weakref.finalize(self, _leave, codes.values())
            self._end.atexit = False
            _forget_derivatives()
        self._before = {key: _runs[key] for key in codes}

    def check(self) -> None:
        """Checks that none of it ran.

        Raises:
            Declined: if any did, or may have.
        """
        for place, codes in self._foreign.items():
            if codes is None or self._end is None or any(map(self._did_run, codes)):
                what = f"Thunder runs {place}, and nothing records what that reads"
                raise Declined(
                    f"{what}; give the executor a method cache_key() that returns its settings", Scope.PROGRAM
                )

    def _did_run(self, code: CodeType) -> bool:
        return _runs[id(code)] != self._before[id(code)]

    def end(self) -> None:
        """Watches no longer."""
        if self._end is not None:
            self._end()


def _watch(codes: Collection[CodeType]) -> bool:
    """Has each run of these counted; returns whether that can be."""
    with _lock:
        _watchers.update(map(id, codes))  # first, so that what ends meanwhile does not give the number back
        tool = _take_tool() if _tool is None else _tool
        if tool is None:
            _watchers.clear()
            return False
        for code in codes:
            sys.monitoring.set_local_events(tool, code, sys.monitoring.events.PY_START)
    return True


def _take_tool() -> int | None:
    """Takes a number and returns it; None if none is free."""
    global _tool
    monitoring = sys.monitoring
    _tool = next((each for each in _TOOLS if monitoring.get_tool(each) is None), None)
    if _tool is not None:
        monitoring.use_tool_id(_tool, "fusioncache")
        monitoring.register_callback(_tool, monitoring.events.PY_START, _count)
    return _tool


def _count(code: CodeType, offset: int) -> Any:
    _runs[id(code)] += 1


def _leave(codes: Collection[CodeType]) -> None:
    """Ends what ``_watch`` began. The last one gives the number back."""
    global _tool
    monitoring = sys.monitoring
    with _lock:
        assert _tool is not None
        for code in codes:
            _watchers[id(code)] -= 1
            if not _watchers[id(code)]:
                monitoring.set_local_events(_tool, code, monitoring.events.NO_EVENTS)
                del _watchers[id(code)], _runs[id(code)]
        if not _watchers:
            monitoring.register_callback(_tool, monitoring.events.PY_START, None)
            monitoring.free_tool_id(_tool)
            _tool = None


def _forget_derivatives() -> None:
    """Empties Thunder's memory of derivatives, which has what code of others said of one in an earlier program."""
    from fusioncache.thunder_adapter.accelerator_api import vjp_utils

    vjp_utils._cache.clear()
