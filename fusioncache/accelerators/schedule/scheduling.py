"""Applies an order to Thunder's traces: each collective runs beside computation. Records where it was placed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fusioncache.accelerators.schedule.agreement import agree_first
from fusioncache.accelerators.schedule.calls import CallGraph
from fusioncache.accelerators.schedule.collective_passes import coalesce_steps, reduce_in_place
from fusioncache.accelerators.schedule.collectives import exchanges, group_of, has_collectives, read_calls
from fusioncache.accelerators.schedule.order import Bounds, choose_budget, schedule_calls
from fusioncache.accelerators.schedule.resharding import gather_again, save_shards, wants_resharding
from fusioncache.accelerators.schedule.timeline import Placement
from fusioncache.process.warning import warn_once
from fusioncache.transform.passes import Accelerator, NamedPass, Pass, TraceContext
from fusioncache.transform.rewrite import deletes, derive

IN_FLIGHT_BYTES = 512 * 2**20
"""How much may be in flight by default: nine products' weights of a 7b model, with which an H200 hides most."""

BUCKET_BYTES = 256 * 2**20
"""How much travels together at most by default."""
_LOST = (
    "under Thunder's fsdp, what runs inside of no_sync() leaves no gradients at all, and the model is trained on the "
    "other batches alone; leave no_sync() out, and gradients of several batches add up"
)


@dataclass(frozen=True, slots=True)
class CollectiveOptions:
    """What a user asked for.

    Attributes:
        moves: whether collectives are moved.
        in_flight_bytes: of gathers, and of reduces, that may be under way.
        bucket_bytes: of small ones that travel together; None leaves it to the model.
    """

    moves: bool
    in_flight_bytes: int
    bucket_bytes: int | None

    @classmethod
    def of(cls, schedule: str, in_flight_bytes: int | None, bucket_bytes: int | None) -> CollectiveOptions:
        """Reads the options of a ``FusionCache``.

        Raises:
            ValueError: if they are none.
        """
        if schedule not in ("auto", "thunder"):
            raise ValueError(f'schedule must be "auto" or "thunder", got {schedule!r}')
        for name, given in (("in_flight_bytes", in_flight_bytes), ("bucket_bytes", bucket_bytes)):
            if given is not None and given < 0:
                raise ValueError(f"{name} must not be negative, got {given!r}")
        return cls(schedule == "auto", IN_FLIGHT_BYTES if in_flight_bytes is None else in_flight_bytes, bucket_bytes)

    def bound(self, graph: CallGraph, *, coalesces: bool) -> Bounds:
        """Returns the bounds for the calls of a trace, of which small ones may travel together or not."""
        if not coalesces:
            return Bounds(self.in_flight_bytes, self.in_flight_bytes)
        # Half of what may be in flight: while some is used, more comes.
        most = min(BUCKET_BYTES, self.in_flight_bytes // 2)
        batch = choose_budget(graph, most) if self.bucket_bytes is None else self.bucket_bytes
        return Bounds(self.in_flight_bytes, self.in_flight_bytes, batch)


class Collectives(Accelerator):
    """The accelerator of collectives.

    Args:
        options: what the user asked for.
        report_left: is told why collectives stay in the order that Thunder gave them.

    Attributes:
        options: these.
        placements: what became of the collectives of each trace that has some and was understood.
    """

    name = "schedule"

    def __init__(self, options: CollectiveOptions, report_left: Callable[[str], None]):
        self.options = options
        self.placements: list[Placement] = []
        self._report_left = report_left

    def passes(self) -> Sequence[Pass]:
        """Returns the passes, or the warning alone if collectives are not to be moved."""
        last = NamedPass("agreement", self._agree)
        moving = NamedPass(_SHARDS, _save_shards), NamedPass("collectives", self._place), last
        return moving if self.options.moves else (last,)

    def ingredients(self) -> str:
        """Returns the options as text."""
        return str(self.options)

    def _place(self, trace: Any, context: TraceContext) -> Any:
        """Runs each collective beside what is computed."""
        if not has_collectives(trace.bound_symbols):
            return trace
        trace, placement = move_collectives(trace, self.options)
        self._note(placement, context)
        return trace

    def _agree(self, trace: Any, context: TraceContext) -> Any:
        """Has ranks compare collectives that are moved before the first run, and warns of gradients that are lost."""
        if not has_collectives(trace.bound_symbols):
            return trace
        _warn_of_lost_gradients()
        return agree_first(trace) if self.options.moves else trace

    def _note(self, placement: Placement, context: TraceContext) -> None:
        """Takes note of what became of the collectives of a trace."""
        self.placements.append(placement)
        if placement.left:
            self._report_left(f"the order of collectives stays: {placement.left}")
        context.notes.record_placement(placement.describe)


_SHARDS = "saved shards"


def _save_shards(trace: Any, context: TraceContext) -> Any:
    """Saves shards of parameters in forward, and gathers them again in backward, where ``fsdp`` is to do so."""
    if context.is_backward:
        resharding = context.left.get(_SHARDS)
        return trace if resharding is None else gather_again(trace, resharding)
    if not (has_collectives(trace.bound_symbols) and wants_resharding()):
        return trace
    trace, resharding = save_shards(trace)
    if resharding is not None:
        context.leaves[_SHARDS] = resharding
    return trace


def move_collectives(trace: Any, options: CollectiveOptions) -> tuple[Any, Placement]:
    """Puts gathers into the order of need, reduces behind what they add up, and waits where something is first used.

    Small ones travel together. What is computed keeps its order, and with it random numbers do. ``del`` statements are
    made anew.

    Args:
        trace: a final one.
        options: what the user asked for.

    Returns:
        The trace in another order, or as it was, and what became of its collectives.

    Raises:
        Declined: if it holds something whose effect is not known.
    """
    start = time.perf_counter()
    symbols = [symbol for symbol in trace.bound_symbols if not deletes(symbol)]
    symbols.sort(key=lambda symbol: not _names_argument(symbol))
    graph = read_calls(symbols)
    bounds = options.bound(graph, coalesces=_can_coalesce(symbols))
    found = Placement(graph, schedule_calls(graph, bounds), bounds)
    if found.left:
        return trace, found
    symbols = reduce_in_place(symbols)
    placed = coalesce_steps([symbols[index] for index in step] for step in found.schedule.steps)
    return derive(trace, placed, "Collectives in their place by fusioncache", start), found


def _can_coalesce(symbols: Iterable[Any]) -> bool:
    """True if collectives may travel together: over NCCL, for which it is made. Gloo was once seen to abort."""
    from torch.distributed import get_backend

    return all(get_backend(group_of(symbol)) == "nccl" for symbol in symbols if exchanges(symbol))


def _names_argument(symbol: Any) -> bool:
    """True if a bound symbol only says that an argument has a name. Thunder puts these before first uses."""
    from fusioncache.thunder_adapter.api import PrimIDs

    return bool(symbol.sym.id == PrimIDs.UNPACK_TRIVIAL)


def _warn_of_lost_gradients() -> None:
    """Warns once if the model that Thunder compiles now is shared by ``fsdp``, and runs inside of ``no_sync()``.

    Thunder's backward function then returns None for all gradients. Once a pass stashed them first; now none does.
    """
    from fusioncache.thunder_adapter.api import get_compile_data, get_skip_data_parallel_grad_sync

    if get_skip_data_parallel_grad_sync() and getattr(get_compile_data(), "use_fsdp", False):
        warn_once(_LOST)
