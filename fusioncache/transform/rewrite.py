"""Makes new traces: with calls of templates, with new fused calls, or with other saved tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import count
from types import SimpleNamespace
from typing import Any

from fusioncache.backends.bound_symbols import outputs_of
from fusioncache.cache.call import CallTarget
from fusioncache.ir import Binding, Region
from fusioncache.template.simplify import objects_of
from fusioncache.thunder_adapter.api import PrimIDs, Symbol, TraceProvenance, TraceTag, torch_executor, variableify


def call_of(fusion: Any, binding: Binding, target: CallTarget, plain: Region) -> list[Any]:
    """Returns the bound symbols that replace a fused one: the call of its template, in the template's argument order.

    If two outputs of the region are one value, they become one tensor if plain Thunder returns one, and else two
    aliases.

    Args:
        fusion: the fused bound symbol.
        binding: of its region.
        target: the callable.
        plain: the region as plain Thunder lays out its values.
    """
    args = [fusion.args[position] for position in binding.arguments]
    if target.takes_arities:
        args.insert(0, binding.arities)
    outputs: list[Any] = [None] * len(target.template.graph.outputs)
    firsts: dict[int, tuple[Any, int]] = {}
    others = []
    for proxy, slot, value in zip(outputs_of(fusion), binding.outputs, objects_of(plain), strict=True):
        first, as_first = firsts.setdefault(slot, (proxy, value))
        outputs[slot] = first
        if first is not proxy:
            others.append(_name_again(first, proxy, same if value == as_first else alias))
    symbol = make_symbol(target.name, target.function, outputs, is_fusion=True, executor=fusion.sym.executor)
    context = {symbol.name: target.function}
    replaced = fusion.from_bsym(
        sym=symbol, args=tuple(args), output=outputs, _call_ctx=context, _import_ctx={}, _object_ctx={}
    )
    return [replaced, *others]


def _name_again(source: Any, target: Any, function: Callable[[Any], Any]) -> Any:
    """Returns a bound symbol that names a value again. For autograd, a tensor returned twice is not its alias."""
    return make_symbol(function.__name__, function, target).bind(source, output=target)


def same(value: Any) -> Any:
    """Returns its argument. Traces call it, and stored programs refer to it by name."""
    return value


def alias(value: Any) -> Any:
    """Returns a new tensor that shares its argument's memory; a number itself. Called by name, as ``same`` is."""
    return value.view(value.shape) if hasattr(value, "view") else value


def make_symbol(name: str, function: Callable[..., Any], results: Any, **options: Any) -> Any:
    """Returns a symbol that Thunder can bind again, which it does to check a trace, or when a pass calls a symbol."""
    return _make_symbol(name, function, lambda *_: results, **options)


def _make_symbol(name: str, function: Callable[..., Any], meta: Callable[..., Any], **options: Any) -> Any:
    def bound(bound_symbol: Any) -> None:
        bound_symbol._call_ctx = {name: function}

    return Symbol(name, meta=meta, _bind_postprocess=bound, **options)


def register_once(name: str, meta: Callable[..., Any], function: Callable[..., Any], **options: Any) -> Any:
    """Returns an operation of Thunder's executor for torch. The first call in a process registers it.

    Args:
        name: of the operation in programs.
        meta: returns proxies of its results.
        function: computes it.
        options: for Thunder, such as its tags.
    """
    return torch_executor.opmap.get(name) or torch_executor.register_operator(name, meta=meta, fn=function, **options)


def rebind(symbol: Any, function: Callable[..., Any], args: Iterable[Any]) -> Any:
    """Returns a bound symbol that calls another function by name, with the results of the given one.

    Args:
        symbol: the given bound symbol. The arguments of both functions have the same names.
        function: the function to call.
        args: by position.
    """
    name = function.__name__
    other = _make_symbol(name, function, symbol.sym.meta, id=name)
    return other.bind(*args, output=symbol.output, **symbol.kwargs)


def replace_symbols(trace: Any, replacements: Mapping[int, list[Any]]) -> Any:
    """Returns a new trace with the bound symbols at some positions replaced."""
    symbols = [
        symbol
        for position, bound_symbol in enumerate(trace.bound_symbols)
        for symbol in replacements.get(position, [bound_symbol])
    ]
    return derive(trace, symbols, "Fusion templates by fusioncache")


def derive(trace: Any, symbols: Iterable[Any], what: str) -> Any:
    """Returns a new trace of these bound symbols, with ``del`` statements at their new places.

    Args:
        trace: the old trace.
        symbols: the bound symbols of the new trace.
        what: the change, for the first line of the new trace. ``note_seconds`` adds how long it took.
    """
    from fusioncache.thunder_adapter.api import del_last_used, from_trace

    new = from_trace(trace)
    clears = any(symbol.sym.id == "clear_mutable_collection" for symbol in trace.bound_symbols)
    new.bound_symbols = [symbol for symbol in symbols if not deletes(symbol)]
    new = del_last_used(new, clear_mutable_collections=clears)
    new.set_provenance(TraceProvenance(what))
    return new


def note_seconds(trace: Any, seconds: float) -> None:
    """Adds to the first line of a trace that ``derive`` returned how long the change took, as Thunder's passes do."""
    what = trace.get_provenance().pss
    trace.set_provenance(TraceProvenance(f"{what} (took {seconds * 1e3:.0f} milliseconds)"))


def deletes(symbol: Any) -> bool:
    """True if a bound symbol only deletes values; ``derive`` adds such symbols again."""
    return symbol.sym.id in (PrimIDs.DEL, "clear_mutable_collection")


def fuse(executor: Any, counter: int, inputs: Sequence[Any], outputs: Sequence[Any], operations: Sequence[Any]) -> Any:
    """Returns a new fused call.

    Args:
        executor: Thunder's executor, which makes the call.
        counter: ends the name of the new call; no other call of the trace may have it.
        inputs: the proxies that the new call takes.
        outputs: the proxies that the new call returns.
        operations: the bound symbols that lead from the inputs to the outputs.
    """
    ends = {"inputs": tuple(map(variableify, inputs)), "outputs": tuple(map(variableify, outputs))}
    return executor.fuse(SimpleNamespace(**ends, bound_symbols=tuple(operations)), counter)


def free_numbers(models: Iterable[Any], trace: Any) -> Iterator[int]:
    """Returns numbers that do not end the name of any of these fused calls, or of any in this trace."""
    names = [symbol.sym.name for symbol in (*models, *trace.bound_symbols) if symbol.sym.is_fusion]
    endings = [name[len(name.rstrip("0123456789")) :] for name in names]
    return count(1 + max((int(ending or 0) for ending in endings), default=0))


_OF_TENSORS = "C0"
"""Thunder's name for the collection of saved tensors in a backward trace."""


def find_saved(trace: Any) -> tuple[Any, ...]:
    """Returns the saved tensors of a forward trace; none if there are no gradients."""
    if TraceTag.AUGMENTED_FORWARD not in trace.tags:
        return ()
    _, (tensors, _) = trace.bound_symbols[-1].args
    return tuple(tensors)


@dataclass(frozen=True, slots=True)
class SavedSwap:
    """The exchange of the tensors that a forward trace saves for its backward trace.

    Attributes:
        saved: the names of the values that were saved, in order.
        remaining: the proxies of the values that are saved now, in order.
    """

    saved: tuple[str, ...]
    remaining: tuple[Any, ...]

    def save(self, trace: Any, what: str) -> Any:
        """Returns a forward trace that saves the remaining tensors.

        Args:
            trace: the forward trace.
            what: the change, for the first line of the new trace.
        """
        *symbols, returning = trace.bound_symbols
        saving = returning.from_bsym(args=(returning.args[0], (self.remaining, returning.args[1][1])))
        return derive(trace, [*symbols, saving], what)

    def take(self, trace: Any, change: Callable[[Iterator[Any]], Iterable[Any]], what: str) -> Any:
        """Returns a backward trace that takes the remaining tensors, with the bound symbols that ``change`` returns.

        Args:
            trace: the backward trace.
            change: changes the bound symbols of a trace that unpacks the remaining tensors.
            what: the change, for the first line of the new trace.

        Raises:
            RuntimeError: if the traces do not belong together. Then the backward trace cannot run unchanged either.
        """
        # Before the new trace is made, because it gets the names that the old one has then.
        symbols = list(change(self._swap_unpacking(trace.bound_symbols)))
        new = derive(trace, symbols, what)
        new.args = ([list(self.remaining), *trace.args[0][1:]], *trace.args[1:])
        return new

    def _swap_unpacking(self, symbols: Sequence[Any]) -> Iterator[Any]:
        """Yields the bound symbols of a backward trace that unpacks other saved tensors."""
        unpacking = next((symbol for symbol in symbols if unpacks_saved(symbol)), None)
        if unpacking is None or [proxy.name for proxy in unpacking.output] != list(self.saved):
            raise RuntimeError("fusioncache: the backward trace does not take what its forward trace saves")
        old, taken = unpacking.args[0], list(self.remaining)
        collection = copy(old)
        collection.coll = taken
        for symbol in symbols:
            if symbol is unpacking:
                yield symbol.from_bsym(args=(collection, len(taken)), output=taken)
            elif any(each is old for each in symbol.flat_proxy_outs):
                # Thunder's CUDAGraphTransform requires the same collection object that was unpacked before.
                yield symbol.from_bsym(output=[collection if each is old else each for each in symbol.output])
            else:
                yield symbol


def unpacks_saved(symbol: Any) -> bool:
    """True if a bound symbol of a backward trace unpacks the saved tensors."""
    return bool(symbol.sym.id is PrimIDs.UNPACK_SEQUENCE and symbol.args[0].name == _OF_TENSORS)
