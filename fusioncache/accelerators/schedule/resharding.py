"""ZeRO3: forward saves the shards of parameters, and backward gathers them again.

Thunder 0.2.6 takes ``FSDPType.ZERO3`` and saves whole parameters all the same.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fusioncache.accelerators.schedule.calls import Kind
from fusioncache.accelerators.schedule.collectives import is_view, kind_of
from fusioncache.backends.bound_symbols import may_write
from fusioncache.ir.errors import Declined, Scope
from fusioncache.transform.rewrite import derive, save_instead, take_instead, unpack_instead, unpacks_saved


@dataclass(frozen=True, slots=True)
class Resharding:
    """What the backward trace must gather, now that the forward trace saves shards.

    Attributes:
        saved: the names of the values that were saved, in order.
        left: the proxies of the values that are saved now, in order.
        gathering: the bound symbols that make the others of these: gathers, waits and views.
    """

    saved: tuple[str, ...]
    left: tuple[Any, ...]
    gathering: tuple[Any, ...]


def wants_resharding() -> bool:
    """True if the model that Thunder compiles now is shared by ``fsdp`` with ``FSDPType.ZERO3``."""
    from fusioncache.thunder_adapter.accelerator_api import FSDPTransform, FSDPType
    from fusioncache.thunder_adapter.api import get_compile_data

    compile_data = get_compile_data()
    transforms = () if compile_data is None else compile_data.transforms
    return any(isinstance(one, FSDPTransform) and one.sharding_strategy is FSDPType.ZERO3 for one in transforms)


def save_shards(trace: Any) -> tuple[Any, Resharding | None]:
    """Returns a forward trace that saves no parameter that was gathered, nor a view of one, but its shard.

    Args:
        trace: a forward trace.

    Returns:
        The trace, and what the backward trace must gather; None if that is nothing.

    Raises:
        Declined: if the forward pass writes in place: what is gathered again might not be what was gathered.
    """
    from fusioncache.thunder_adapter.api import TraceTag

    if TraceTag.AUGMENTED_FORWARD not in trace.tags:
        return trace, None
    start = time.perf_counter()
    returning = trace.bound_symbols[-1]
    values, (tensors, _) = returning.args
    inputs = {proxy.name: proxy for proxy in values["flat_args"] if hasattr(proxy, "name")}
    makers = {proxy.name: symbol for symbol in trace.bound_symbols for proxy in symbol.flat_proxy_outs}
    left: dict[str, Any] = {}
    gathering: dict[int, Any] = {}
    for proxy in tensors:
        shard, steps = _trace_back(proxy, makers, inputs)
        left.setdefault(shard.name, shard)
        gathering.update((id(step), step) for step in steps)
    if not gathering:
        return trace, None
    if any(may_write(symbol) for symbol in trace.bound_symbols):
        raise Declined("whole parameters are saved: a trace with collectives writes in place", Scope.REGION)
    taken = tuple(left.values())
    if len(taken) == len(tensors):
        # Should the backward trace ever be one that knows nothing of this, it fails, and takes no shard for the whole.
        taken += taken[:1]
    order = [symbol for symbol in trace.bound_symbols if id(symbol) in gathering]
    found = Resharding(tuple(proxy.name for proxy in tensors), taken, tuple(order))
    symbols = [*trace.bound_symbols[:-1], save_instead(returning, taken)]
    return derive(trace, symbols, "Shards saved by fusioncache", start), found


def _trace_back(proxy: Any, makers: Mapping[str, Any], inputs: Mapping[str, Any]) -> tuple[Any, Sequence[Any]]:
    """Returns the shard that a value was gathered from, and the bound symbols on the way, the last one first.

    Of what was not gathered from an input this is the value itself, and nothing.
    """
    steps: list[Any] = []
    now = proxy
    while now.name not in inputs:
        symbol = makers.get(now.name)
        if symbol is None or not (kind_of(symbol) in (Kind.GATHER, Kind.WAIT) or is_view(symbol)):
            return proxy, ()
        if len(symbol.flat_proxy_args) != 1:
            return proxy, ()
        steps.append(symbol)
        now = symbol.flat_proxy_args[0]
    gathered = any(kind_of(step) is Kind.GATHER for step in steps)
    return (inputs[now.name], steps) if gathered else (proxy, ())


def gather_again(trace: Any, resharding: Resharding) -> Any:
    """Returns a backward trace that takes shards, and gathers the parameters before anything else.

    Raises:
        RuntimeError: if this is not the backward trace of that forward trace.
    """
    start = time.perf_counter()
    symbols: list[Any] = []
    for symbol in unpack_instead(trace.bound_symbols, resharding.saved, resharding.left):
        symbols.append(symbol)
        if unpacks_saved(symbol):
            symbols += resharding.gathering
    new = derive(trace, symbols, "Parameters gathered again by fusioncache", start)
    new.args = take_instead(trace, resharding.left)
    return new
