"""New fused calls from the executor that made another one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any


@dataclass(frozen=True, slots=True)
class _Group:
    """What Thunder's executors ask of a region."""

    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    bound_symbols: tuple[Any, ...]


def fused_again(
    model: Any, counter: int, inputs: Sequence[Any], outputs: Sequence[Any], operations: Sequence[Any]
) -> Any:
    """A fused call by the executor of another one.

    Args:
        model: the other one.
        counter: ends the new call's name; no other call of the trace may have it.
        inputs: the proxies that it takes.
        outputs: the proxies that it gives.
        operations: bound symbols that lead from these to those.
    """
    from thunder.core.proxies import variableify

    group = _Group(tuple(map(variableify, inputs)), tuple(map(variableify, outputs)), tuple(operations))
    return model.sym.executor.fuse(group, counter)


def named_after(models: Iterable[Any], trace: Any) -> Iterator[int]:
    """Counters that end neither the name of one of these fused calls nor of one in this trace."""
    names = [symbol.sym.name for symbol in (*models, *trace.bound_symbols) if symbol.sym.is_fusion]
    endings = [name[len(name.rstrip("0123456789")) :] for name in names]
    return count(1 + max((int(ending or 0) for ending in endings), default=0))
