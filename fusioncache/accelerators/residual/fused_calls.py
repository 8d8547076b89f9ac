"""Reads the fused calls of a trace as values, and what is around them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fusioncache.accelerators.residual.streams import Around
from fusioncache.accelerators.residual.sums import Call
from fusioncache.backends.symbols import symbol_name, written_values
from fusioncache.ir import AS_WRITTEN, Arithmetic, Declined, Scope
from fusioncache.ir.ops import ADD, op_traits, writes_in_place
from fusioncache.transform.executors import origin_of
from fusioncache.transform.region import region_of


def _as_written(fusion: Any) -> Arithmetic:
    return AS_WRITTEN


def _ignore(reason: str) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Compilers:
    """What planners of residual streams ask of the compilers of a trace's regions.

    Attributes:
        arithmetic: says how the compiler of a fused call computes.
        report_left: is told why a stream, or a sum, stays as it is.
    """

    arithmetic: Callable[[Any], Arithmetic] = _as_written
    report_left: Callable[[str], None] = _ignore


UNKNOWN = Compilers()
"""Compilers that compute what is written. Nobody is told what stays as it is."""


def adds_twice(trace: Any) -> bool:
    """Tells whether any add is in two regions. Most traces need no closer look."""
    from fusioncache.thunder_adapter.api import PrimIDs

    seen: set[str] = set()
    for fusion in trace.bound_symbols:
        for symbol in fusion.subsymbols if fusion.sym.is_fusion else ():
            leaf = _unwrap(symbol)
            if leaf.sym.id is PrimIDs.ADD:
                if leaf.output.name in seen:
                    return True
                seen.add(leaf.output.name)
    return False


def _unwrap(symbol: Any) -> Any:
    """Returns the only add or conversion in an operation, as ``torch.compile`` wraps them; else the operation."""
    leaf = symbol
    while len(leaf.subsymbols) == 1:
        leaf = leaf.subsymbols[0]
    name = symbol_name(leaf.sym) or ""
    return leaf if name == ADD or op_traits(name).conversion else symbol


def read_calls(trace: Any, compilers: Compilers) -> tuple[list[Call], Around]:
    """Reads the fused calls that are understood, and what is around them."""
    from fusioncache.thunder_adapter.api import PrimIDs

    calls = []
    defined: set[str] = set()
    used: set[str] = set()
    written: set[str] = set()
    defined_at: dict[str, int] = {}
    for position, symbol in enumerate(trace.bound_symbols):
        call = _read_call(position, symbol, compilers) if symbol.sym.is_fusion else None
        results = [proxy.name for proxy in symbol.flat_proxy_outs]
        if not str(symbol.sym.id).startswith("PrimIDs.UNPACK"):
            defined_at.update(dict.fromkeys(results, position + 1))
        if call is not None:
            calls.append(call)
        elif symbol.sym.id is not PrimIDs.DEL:
            defined.update(results)
            used.update(proxy.name for proxy in symbol.flat_proxy_args)
            written.update(written_values(symbol))
    waiting = {name: position for name, position in defined_at.items() if name not in used}
    return calls, Around(defined, written, waiting)


def _read_call(position: int, fusion: Any, compilers: Compilers) -> Call | None:
    leaves = tuple(map(_unwrap, fusion.subsymbols))
    try:
        origin_of(fusion)
        region = region_of(fusion.from_bsym(subsymbols=leaves))
    except Declined as declined:
        declined.require(Scope.REGION)
        return None
    if region.sizes or writes_in_place(region):
        return None
    names = [proxy.name for proxy in fusion.args]
    for symbol in leaves:
        results = symbol.output if isinstance(symbol.output, (tuple, list)) else (symbol.output,)
        names += ["" if proxy is None else proxy.name for proxy in results]
    return Call(position, region, tuple(names), compilers.arithmetic(fusion))
