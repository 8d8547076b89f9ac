"""Later steps without what changes nothing, as a transform of Thunder's sees to it: in calls, and in final traces."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from fusioncache.accelerators.programs.program_list import order_entries
from fusioncache.accelerators.steps import masks, row_writes
from fusioncache.accelerators.steps.installation import shorten_calls
from fusioncache.accelerators.steps.query_layout import QUERIES, put_positions_first
from fusioncache.accelerators.steps.saved_results import RESULTS, SavedResults, save_once
from fusioncache.accelerators.steps.traces import simplify
from fusioncache.thunder_adapter.installation import install_more
from fusioncache.transform.rewrite import derive
from fusioncache.transform.saved_tensors import find_saved


def check_lean(option: str) -> None:
    """Checks an option of ``LeanSteps``.

    Raises:
        ValueError: if it is unknown.
    """
    if option not in ("auto", "thunder"):
        raise ValueError(f'lean must be "auto" or "thunder", got {option!r}')


class LeanSteps:
    """What is done for later steps.

    Args:
        option: ``"auto"`` for all of it, ``"thunder"`` for nothing.
        count: counts what was taken out of a trace, by what it was.
        failed: reports what failed, and with which error.

    Raises:
        ValueError: if the option is none of these.

    Attributes:
        option: the same.
        writes_rows: whether rows are written in place in programs that compute no gradient: see ``row_writes.py``.
    """

    def __init__(
        self, option: str, count: Callable[[Mapping[str, int]], None], failed: Callable[[str, Exception], None]
    ):
        check_lean(option)
        self.option = option
        self.writes_rows = option == "auto"
        install_more("rows written in place", row_writes.replacements)
        install_more("masks prepared once", masks.replacements)
        self._count = count
        self._failed = failed

    def shorten(self, module: Any) -> None:
        """Shortens the calls of a module that Thunder makes at this moment."""
        if self.option == "auto":
            shorten_calls(module, order_entries)

    def spare_copies(self, trace: Any) -> tuple[Any, SavedResults | None]:
        """Returns a final forward trace without copies around attention, and what its backward trace must view then.

        A backward trace stays as it is.
        """
        from fusioncache.thunder_adapter.api import TraceTag

        if self.option != "auto" or TraceTag.BACKWARD in trace.tags:
            return trace, None
        try:
            if not find_saved(trace):
                trace, count = put_positions_first(trace)
                self._count({QUERIES: count} if count else {})
                return trace, None
            trace, results = save_once(trace)
            self._count({RESULTS: len(results.joined)} if results else {})
            return trace, results
        except Exception as error:  # whatever it is, the trace is right as it is
            self._failed("what attention copies", error)
            return trace, None

    def simplify(self, trace: Any) -> Any:
        """Returns a final trace without what changes nothing."""
        if self.option != "auto":
            return trace
        start = time.perf_counter()
        try:
            leaner = simplify(trace)
            if leaner.taken:
                trace = derive(trace, leaner.symbols, "What changes nothing left out by fusioncache", start)
                self._count(leaner.taken)
        except Exception as error:  # whatever it is, the trace is right as it is
            self._failed("what changes nothing", error)
        return trace
