"""Later steps without what changes nothing, as a transform of Thunder's sees to it: in calls, and in final traces."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from fusioncache.accelerators.programs.program_list import order_entries
from fusioncache.accelerators.steps import masks, row_writes
from fusioncache.accelerators.steps.autograd import ProgramInputs, ProgramOutputs
from fusioncache.accelerators.steps.installation import shorten_calls
from fusioncache.accelerators.steps.prologue.quickening import quicken_last
from fusioncache.accelerators.steps.query_layout import QUERIES, put_positions_first
from fusioncache.accelerators.steps.saved_results import RESULTS, save_once, view_results
from fusioncache.accelerators.steps.traces import simplify
from fusioncache.thunder_adapter.installation import install_more
from fusioncache.transform.dynamo_frames import backward_code, skip_frames
from fusioncache.transform.passes import Accelerator, Pass, TraceContext
from fusioncache.transform.rewrite import derive, find_saved


def check_lean(option: str) -> None:
    """Checks an option of ``LeanSteps``.

    Raises:
        ValueError: if it is unknown.
    """
    if option not in ("auto", "thunder"):
        raise ValueError(f'lean must be "auto" or "thunder", got {option!r}')


class LeanSteps(Accelerator):
    """The accelerator of later steps.

    Args:
        option: ``"auto"`` for all of it, ``"thunder"`` for nothing.
        count: counts what was taken out of a trace, by what it was.

    Raises:
        ValueError: if the option is none of these.

    Attributes:
        option: the same.
        writes_rows: whether rows are written in place in programs that compute no gradient: see ``row_writes.py``.
    """

    name = "lean steps"

    def __init__(self, option: str, count: Callable[[Mapping[str, int]], None]):
        check_lean(option)
        self.option = option
        self.writes_rows = option == "auto"
        install_more("rows written in place", row_writes.replacements)
        install_more("masks prepared once", masks.replacements)
        skip_frames(map(backward_code, (ProgramInputs, ProgramOutputs)))
        self._count = count

    def passes(self) -> Sequence[Pass]:
        """Returns the pass that spares copies around attention, and the one that leaves out what changes nothing."""
        return () if self.option != "auto" else (_AttentionCopies(self._count), _LeaveOut(self._count))

    def ingredients(self) -> str:
        """Returns the option as text."""
        return f"lean={self.option}"

    def start(self, module: Any) -> None:
        """Shortens the calls of a module that Thunder makes at this moment."""
        if self.option == "auto":
            shorten_calls(module, order_entries)


class _AttentionCopies:
    """Spares copies around attention: results that are saved twice, and queries in another order."""

    name: ClassVar[str] = "attention copies"

    def __init__(self, count: Callable[[Mapping[str, int]], None]):
        self._count = count

    def apply(self, trace: Any, context: TraceContext) -> Any:
        if context.is_backward:
            results = context.left.get(self.name)
            return trace if results is None else view_results(trace, results)
        if not find_saved(trace):
            trace, count = put_positions_first(trace)
            self._count({QUERIES: count} if count else {})
            return trace
        trace, results = save_once(trace)
        if results:
            context.leaves[self.name] = results
            self._count({RESULTS: len(results.joined)})
        return trace


class _LeaveOut:
    """Leaves out what changes nothing, and quickens the prologue of the program."""

    name: ClassVar[str] = "lean steps"

    def __init__(self, count: Callable[[Mapping[str, int]], None]):
        self._count = count

    def apply(self, trace: Any, context: TraceContext) -> Any:
        quicken_last()
        start = time.perf_counter()
        leaner = simplify(trace)
        if leaner.taken:
            trace = derive(trace, leaner.symbols, "What changes nothing left out by fusioncache", start)
            self._count(leaner.taken)
        return trace
