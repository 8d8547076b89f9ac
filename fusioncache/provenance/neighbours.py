"""Which modules' parameters the values of a trace come from, and which they go to next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fusioncache.backends.symbols import argument_names, result_names
from fusioncache.provenance.compilation import Module


@dataclass(frozen=True, slots=True)
class Near:
    """The module of the nearest operation with a parameter, and where in the trace that is."""

    position: int
    module: Module


@dataclass(frozen=True, slots=True)
class Neighbours:
    """For each value of a trace, the nearest operations with parameters.

    Attributes:
        before: the last one that it depends on.
        after: the first one that depends on it.
    """

    before: Mapping[str, Near]
    after: Mapping[str, Near]


def neighbours(trace: Any, parameters: Mapping[str, Module]) -> Neighbours:
    """Looks from every value both ways. Linear in the trace."""
    steps = [
        (position, symbol, own_module(symbol, parameters))
        for position, symbol in enumerate(trace.bound_symbols)
        if computes(symbol)
    ]
    before: dict[str, Near] = {}
    for position, symbol, own in steps:
        given = (before[name] for name in argument_names(symbol) if name in before)
        near = Near(position, own) if own else max(given, key=_position, default=None)
        if near is not None:
            before.update((name, before.get(name, near)) for name in result_names(symbol))
    after: dict[str, Near] = {}
    for position, symbol, own in reversed(steps):
        wanted = (after[name] for name in result_names(symbol) if name in after)
        near = Near(position, own) if own else min(wanted, key=_position, default=None)
        if near is not None:
            after.update((name, min(near, after.get(name, near), key=_position)) for name in argument_names(symbol))
    return Neighbours(before, after)


def _position(near: Near) -> int:
    return near.position


def computes(symbol: Any) -> bool:
    """Whether a bound symbol makes values out of values, rather than to unpack, delete or return them."""
    from thunder.core.prims import PrimIDs

    id_ = symbol.sym.id
    return id_ not in (PrimIDs.DEL, PrimIDs.RETURN) and not str(id_).startswith(("PrimIDs.UNPACK", "clear_mutable"))


def own_module(symbol: Any, parameters: Mapping[str, Module]) -> Module:
    """The module whose parameters a bound symbol takes; if they are of several layers, that of the last one."""
    modules = [parameters[name] for name in argument_names(symbol) if name in parameters]
    shared = common(modules)
    return modules[-1] if modules and layer_of(shared) is None and layer_of(modules[-1]) is not None else shared


def layer_of(module: Module) -> int | None:
    """The first number in a path."""
    return next((int(part) for part in module if part.isdigit()), None)


def common(modules: Iterable[Module]) -> Module:
    """The innermost module that contains all of these."""
    modules = list(modules)
    if not modules:
        return ()
    shortest, length = min(modules, key=len), 0
    while length < len(shortest) and all(module[length] == shortest[length] for module in modules):
        length += 1
    return shortest[:length]
