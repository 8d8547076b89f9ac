"""New traces: fused calls replaced by calls of their templates, and fused calls that are made anew."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

from fusioncache.backends.symbols import outputs_of
from fusioncache.ir import Binding, Template


class Callee(Protocol):
    """What a trace calls: a ``TemplateCall``, or what takes its place in verify mode. Named after its template."""

    template: Template
    name: str
    entry: Callable[..., Any]

    @property
    def takes_arities(self) -> bool:
        """Whether a call starts with the tuple of arities."""


def call_of(fusion: Any, binding: Binding, call: Callee) -> list[Any]:
    """The bound symbols that replace a fused one: the call of its template, in the template's argument order.

    Where two outputs of the region are one value, they were one tensor before, and so they are now.
    """
    args = [fusion.args[position] for position in binding.arguments]
    if call.takes_arities:
        args.insert(0, binding.arities)
    outputs: list[Any] = [None] * len(call.template.graph.outputs)
    others = []
    for proxy, slot in zip(outputs_of(fusion), binding.outputs, strict=True):
        if outputs[slot] is None:
            outputs[slot] = proxy
        else:
            others.append(_same(outputs[slot], proxy))
    symbol = _symbol(call.name, call.entry, outputs, is_fusion=True, executor=fusion.sym.executor)
    context = {symbol.name: call.entry}
    replaced = fusion.from_bsym(
        sym=symbol, args=tuple(args), output=outputs, _call_ctx=context, _import_ctx={}, _object_ctx={}
    )
    return [replaced, *others]


def _same(source: Any, target: Any) -> Any:
    """Another name for a value. For autograd a tensor that is returned twice is not the same as its copy."""
    return _symbol("same", lambda value: value, target).bind(source, output=target)


def _symbol(name: str, function: Callable[..., Any], results: Any, **options: Any) -> Any:
    """A symbol that Thunder can bind anew, as it does where it checks a trace or a pass calls what it finds."""
    from thunder.core.symbol import Symbol

    def bound(bound_symbol: Any) -> None:
        bound_symbol._call_ctx = {name: function}

    return Symbol(name, meta=lambda *_: results, _bind_postprocess=bound, **options)


def replace_symbols(trace: Any, replacements: Mapping[int, list[Any]], start: float) -> Any:
    """A new trace with bound symbols replaced, by their positions."""
    symbols = [
        symbol
        for position, bound_symbol in enumerate(trace.bound_symbols)
        for symbol in replacements.get(position, [bound_symbol])
    ]
    return derive(trace, symbols, "Fusion templates by fusioncache", start)


def derive(trace: Any, symbols: Iterable[Any], what: str, start: float) -> Any:
    """A new trace of these bound symbols, with ``del`` statements where they belong now.

    Args:
        trace: the old one.
        symbols: what the new one consists of.
        what: was done to it, for its first line.
        start: when that began, by ``time.perf_counter``.
    """
    from thunder.core.prims import PrimIDs
    from thunder.core.trace import TraceProvenance, from_trace
    from thunder.executors.passes import del_last_used

    new = from_trace(trace)
    clears = any(symbol.sym.id == "clear_mutable_collection" for symbol in trace.bound_symbols)
    made_anew = (PrimIDs.DEL, "clear_mutable_collection")
    new.bound_symbols = [symbol for symbol in symbols if symbol.sym.id not in made_anew]
    new = del_last_used(new, clear_mutable_collections=clears)
    milliseconds = (time.perf_counter() - start) * 1e3
    new.set_provenance(TraceProvenance(f"{what} (took {milliseconds:.0f} milliseconds)"))
    return new


@dataclass(frozen=True, slots=True)
class _Group:
    """What Thunder's executors ask of a region."""

    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    bound_symbols: tuple[Any, ...]


def fuse_like(
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


def free_numbers(models: Iterable[Any], trace: Any) -> Iterator[int]:
    """Counters that end neither the name of one of these fused calls nor of one in this trace."""
    names = [symbol.sym.name for symbol in (*models, *trace.bound_symbols) if symbol.sym.is_fusion]
    endings = [name[len(name.rstrip("0123456789")) :] for name in names]
    return count(1 + max((int(ending or 0) for ending in endings), default=0))
