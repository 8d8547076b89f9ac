"""Constraints on inputs, which Thunder's prologue checks, each compared only with those on the same input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary


@dataclass(slots=True)
class _Constraints:
    """Some constraints, all of which start with the same kind of check of the same proxy. Thunder adds to them."""

    _constraints: list[Any] = field(default_factory=list)


@dataclass(slots=True)
class _Index:
    """The constraints of one trace by the name of the proxy that they are on.

    Attributes:
        of_proxy: the constraints on each proxy, by its name.
        count: how many constraints these are.
    """

    of_proxy: dict[str, _Constraints] = field(default_factory=dict)
    count: int = 0


def index_constraints(original: Callable[..., Any]) -> Callable[..., Any]:
    """Looks for the same constraint among those on the same proxy: on another, none is the same."""
    from thunder.core.baseutils import ProxyInterface

    indices: WeakKeyDictionary[Any, _Index] = WeakKeyDictionary()

    @wraps(original)
    def add_constraint(self: Any, constraint: Any) -> None:
        index = indices.setdefault(self, _Index())
        is_on_proxy = len(constraint) > 1 and isinstance(constraint[1], ProxyInterface)
        if not is_on_proxy or index.count != len(self._constraints):  # somebody else has added one, or this does
            return original(self, constraint)
        same = index.of_proxy.setdefault(constraint[1].name, _Constraints())
        before = len(same._constraints)
        original(same, constraint)
        if len(same._constraints) > before:
            self._constraints.append(constraint)
            index.count += 1
        return None

    return add_constraint
