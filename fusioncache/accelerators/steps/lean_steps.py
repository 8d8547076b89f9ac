"""The accelerator of later steps: shortens calls, and removes redundant operations from final traces."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fusioncache.accelerators.steps.calls import Order, ProgramInputs, ProgramOutputs, WholeProgram, shorten_calls
from fusioncache.accelerators.steps.masks import find_masks, mask_replacements, share_masks
from fusioncache.accelerators.steps.prologue import quicken_last
from fusioncache.accelerators.steps.tokens import row_replacements, simplify_writes
from fusioncache.accelerators.steps.views import (
    RESULTS,
    SavedResults,
    SimplifiedProgram,
    list_unchanging,
    save_once,
    simplify_views,
    view_results,
)
from fusioncache.backends.bound_symbols import written_values
from fusioncache.thunder_adapter.installation import install_more
from fusioncache.transform.dynamo_graphs import backward_code, skip_frames
from fusioncache.transform.passes import Accelerator, Pass, TraceContext, pair_passes
from fusioncache.transform.rewrite import derive


def simplify(trace: Any) -> SimplifiedProgram:
    """Returns the bound symbols of a final trace without redundant operations, and the number of those.

    The results are the same, bit for bit and in the same layout.
    """
    from fusioncache.thunder_adapter.api import PrimIDs

    # Deletions of values are inserted anew.
    symbols = tuple(symbol for symbol in trace.bound_symbols if symbol.sym.id is not PrimIDs.DEL)
    writes = any(True for symbol in symbols for _ in written_values(symbol))
    views = simplify_writes(symbols) if writes else simplify_views(symbols, writes=False)
    masks = share_masks(trace, views.symbols)
    return SimplifiedProgram(masks.symbols, {**views.taken, **masks.taken})


def look_at_sizes(trace: Any) -> None:
    """Compares the sizes in a final trace that ``simplify`` depends on, so that observers of sizes are notified."""
    for _ in (*list_unchanging(trace.bound_symbols), *find_masks(trace.bound_symbols)):
        pass


def check_lean(option: str) -> None:
    """Checks the option that switches ``LeanSteps`` on or off.

    Raises:
        ValueError: if it is unknown.
    """
    if option not in ("auto", "thunder"):
        raise ValueError(f'lean must be "auto" or "thunder", got {option!r}')


class LeanSteps(Accelerator):
    """The accelerator of later steps.

    Args:
        count: counts the operations removed from a trace, by their kind.
        order: the order in which the entries of a module are tried.
    """

    name = "lean steps"

    def __init__(self, count: Callable[[Mapping[str, int]], None], order: Order):
        install_more("rows written in place", row_replacements)
        install_more("masks prepared once", mask_replacements)
        skip_frames(map(backward_code, (ProgramInputs, ProgramOutputs, WholeProgram)))
        self._count = count
        self._order = order

    def passes(self) -> Sequence[Pass]:
        """Returns the pass that avoids copies around attention, and the one that removes redundant operations."""
        copies = pair_passes("attention copies", self._avoid_copies, view_results)
        return copies, Pass(self.name, self._remove_redundant)

    def _avoid_copies(self, trace: Any, context: TraceContext) -> tuple[Any, SavedResults | None]:
        """Returns a forward trace that saves each result of attention once, and the changes for its backward trace."""
        trace, results = save_once(trace)
        if results:
            self._count({RESULTS: len(results.joined)})
        return trace, results

    def _remove_redundant(self, trace: Any, context: TraceContext) -> Any:
        """Removes redundant operations, and quickens the prologue of the program."""
        quicken_last()
        simplified = simplify(trace)
        if simplified.taken:
            trace = derive(trace, simplified.symbols, "What changes nothing left out by fusioncache")
            self._count(simplified.taken)
        return trace

    def ingredients(self) -> str:
        """Returns the option as text."""
        return "lean=auto"

    def start(self, module: Any) -> None:
        """Shortens the calls of a module that Thunder is making."""
        shorten_calls(module, self._order)
