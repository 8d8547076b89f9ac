"""Thunder's traces in another order: each collective where it runs beside what is computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fusioncache.ir import Bypass
from fusioncache.schedule.order import Bounds, schedule_calls
from fusioncache.trace.collectives import has_collectives, read_calls
from fusioncache.trace.rewrite import deletes, derive

IN_FLIGHT_BYTES = 512 * 2**20
"""How much may be in flight if nobody says it: nine products' weights of a 7b model, with which an H200 hides most."""


@dataclass(frozen=True, slots=True)
class CollectiveOptions:
    """What a user asked for.

    Attributes:
        moves: whether collectives are moved.
        bounds: what may be in flight.
    """

    moves: bool
    bounds: Bounds

    @classmethod
    def of(cls, schedule: str, in_flight_bytes: int | None) -> CollectiveOptions:
        """Reads the options of a ``FusionCache``.

        Raises:
            ValueError: if they are none.
        """
        if schedule not in ("auto", "thunder"):
            raise ValueError(f'schedule must be "auto" or "thunder", got {schedule!r}')
        if in_flight_bytes is not None and in_flight_bytes < 0:
            raise ValueError(f"in_flight_bytes must not be negative, got {in_flight_bytes!r}")
        in_flight = IN_FLIGHT_BYTES if in_flight_bytes is None else in_flight_bytes
        return cls(schedule == "auto", Bounds(in_flight, in_flight))


def move_collectives(trace: Any, options: CollectiveOptions, start: float) -> Any:
    """Returns a trace whose collectives are in their place; the same one if there is none, or none is to be moved.

    Gathers come in order of need, reduces behind what they add up, and waits where something is first used. What is
    computed keeps its order, and with it random numbers do. ``del`` statements are made anew.

    Args:
        trace: a final one.
        options: what the user asked for.
        start: the time when this began, by ``time.perf_counter``.

    Raises:
        Bypass: if the order stays as Thunder made it, with the reason.
    """
    if not options.moves or not has_collectives(trace.bound_symbols):
        return trace
    symbols = [symbol for symbol in trace.bound_symbols if not deletes(symbol)]
    symbols.sort(key=lambda symbol: not _names_argument(symbol))
    found = schedule_calls(read_calls(symbols), options.bounds)
    if found.reason:
        raise Bypass(f"the order of collectives stays: {found.reason}")
    return derive(trace, [symbols[index] for index in found.order], "Collectives in their place by fusioncache", start)


def _names_argument(symbol: Any) -> bool:
    """Tells whether a bound symbol only says that an argument has a name. Thunder puts these before first uses."""
    from thunder.core.prims import PrimIDs

    return bool(symbol.sym.id == PrimIDs.UNPACK_TRIVIAL)
