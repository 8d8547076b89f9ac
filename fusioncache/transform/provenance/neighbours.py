"""Finds the modules whose parameters are used nearest to each value of a trace, before it and after it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fusioncache.backends.bound_symbols import argument_names, result_names
from fusioncache.transform.provenance.compilation import Module


@dataclass(frozen=True, slots=True)
class Near:
    """The nearest operation with a parameter: its position in the trace, and the parameter's module."""

    position: int
    module: Module


@dataclass(frozen=True, slots=True)
class Neighbours:
    """For each value of a trace, the nearest operations with parameters.

    Attributes:
        before: by the value's name, the last such operation that the value depends on.
        after: by the value's name, the first such operation that depends on the value.
    """

    before: Mapping[str, Near]
    after: Mapping[str, Near]


def find_neighbours(trace: Any, parameters: Mapping[str, Module]) -> Neighbours:
    """Finds the neighbours of every value, in time that is linear in the trace."""
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
    """Tells whether a bound symbol computes values, and does not just unpack, delete or return them."""
    from fusioncache.thunder_adapter.api import PrimIDs

    id_ = symbol.sym.id
    return id_ not in (PrimIDs.DEL, PrimIDs.RETURN) and not str(id_).startswith(("PrimIDs.UNPACK", "clear_mutable"))


def own_module(symbol: Any, parameters: Mapping[str, Module]) -> Module:
    """Returns the module whose parameters a bound symbol takes; of parameters of several layers, that of the last."""
    modules = [parameters[name] for name in argument_names(symbol) if name in parameters]
    shared = common_module(modules)
    return modules[-1] if modules and layer_of(shared) is None and layer_of(modules[-1]) is not None else shared


def layer_of(module: Module) -> int | None:
    """Returns the first number in the path of a module; None if there is none."""
    return next((int(part) for part in module if part.isdigit()), None)


def common_module(modules: Iterable[Module]) -> Module:
    """Returns the innermost module that contains all of these."""
    modules = list(modules)
    if not modules:
        return ()
    shortest, length = min(modules, key=len), 0
    while length < len(shortest) and all(module[length] == shortest[length] for module in modules):
        length += 1
    return shortest[:length]
