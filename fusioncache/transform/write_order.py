"""Whether groups of bound symbols keep reads and writes of the same memory in their order.

Thunder groups bound symbols by what they take and give. A write in place gives a new name, so that nothing tells what
reads the memory before it from what reads it behind. Two inputs of a trace may lie in the same memory, so all of them
are one here, with what may be a view of any.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fusioncache.backends.symbols import argument_names, leaves_of, may_write, symbol_name, written_values
from fusioncache.ir.ops import op_traits

_OUTSIDE = ""
"""Stands for the memory of all inputs. No value has this name."""


def writes_in_place(trace: Any) -> bool:
    """Tells whether anything in a trace may write in place."""
    return any(map(may_write, trace.bound_symbols))


def keeps_order(trace: Any, groups: Sequence[Sequence[Any]]) -> bool:
    """Tells whether what meets the memory of a write is on the same side of it in groups as in their trace.

    Args:
        trace: its bound symbols are in the order in which a model's code has them.
        groups: the same bound symbols, in the order in which they would run. What writes is a group of its own.
    """
    symbols = trace.bound_symbols
    memory = _find_memory(symbols)
    places = {id(symbol): place for place, group in enumerate(groups) for symbol in group}
    met = [{memory.get(name, _OUTSIDE) for name in argument_names(symbol)} for symbol in symbols]
    for number, writer in enumerate(symbols):
        written = {memory.get(name, _OUTSIDE) for name in written_values(writer)}
        for other, symbol in enumerate(symbols if written else ()):
            is_before = places[id(symbol)] < places[id(writer)]
            if other != number and written & met[other] and is_before != (other < number):
                return False
    return True


def _find_memory(symbols: Sequence[Any]) -> dict[str, str]:
    """Returns by the name of each value that of the value in whose memory it may lie, or that of all inputs."""
    memory: dict[str, str] = {}
    for leaf in (leaf for symbol in symbols for leaf in leaves_of(symbol)):
        taken = {memory.get(name, _OUTSIDE) for name in argument_names(leaf)}
        inherited = next(iter(taken)) if len(taken) == 1 else _OUTSIDE
        is_new = op_traits(symbol_name(leaf.sym) or "").allocates and not may_write(leaf)
        for proxy in leaf.flat_proxy_outs:
            memory.setdefault(proxy.name, proxy.name if is_new else inherited)
    return memory
