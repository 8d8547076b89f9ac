"""A fusion executor for any device that torch knows. It makes regions where nvFuser cannot."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from thunder.core import dtypes, utils
from thunder.core.proxies import NumberProxy, TensorProxy, unvariableify
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceProvenance, from_trace
from thunder.core.transform_common import dce
from thunder.executors.data_dependent_partition import Node, consecutive_fusion, fuse_bound_symbols
from thunder.executors.passes import update_fusion_call_ctx
from thunder.executors.utils import Region
from thunder.extend import FusionExecutor, ImplInfo

from fusioncache.backends.bound_symbols import torch_function
from fusioncache.backends.inductor.backend import inductor_function
from fusioncache.backends.registry import best_backend
from fusioncache.backends.symbols import symbol_name, symbol_named
from fusioncache.ir.ops import TABLE, op_traits
from fusioncache.record.events import CompileEvent, CompileObserver
from fusioncache.trace.rematerialization import rematerialize
from fusioncache.trace.write_order import keeps_order, writes_in_place


class FusionCacheExecutor(FusionExecutor):
    """Groups elementwise operations, reductions and changes of shape into regions of primitive operations.

    Matrix products, indexing, random numbers and effects stay outside. Without the ``FusionCache`` transform each
    region is compiled by itself.

    Args:
        name: by which Thunder knows the executor.

    Attributes:
        observers: are told of each region that is compiled by itself.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.observers: list[CompileObserver] = []
        self._implmap = {symbol_named(name).id: ImplInfo() for name, traits in TABLE.items() if traits.fusible}

    def fuse(self, region: Region, fusion_counter: int) -> BoundSymbol:
        """Returns one call for a group of bound symbols."""
        inputs = [unvariableify(value) for value in region.inputs]
        outputs = [unvariableify(value) for value in region.outputs]
        primitives = [inner for bound_symbol in region.bound_symbols for inner in _flatten(bound_symbol)]
        name = f"Fusion{fusion_counter}"
        function = self._compile_when_called(primitives, inputs, outputs)
        return self.register_temporary_operation(name, function, inputs=inputs, outputs=outputs, bsyms=primitives)

    def cache_key(self) -> str:
        """Returns what the programs depend on that this executor makes regions of: what it is called, and its table."""
        return str(self.name)

    def own_backend(self) -> str:
        """Returns the name of the backend with which this executor compiles a region by itself."""
        return best_backend("cpu")

    def can_fuse(self, bsym: BoundSymbol) -> bool:
        """Tells whether an operation may be part of a region. What another executor claimed stays there.

        What computes with numbers alone is left to Python: in a region it would keep a number from being any. What
        Thunder takes for ``int8``, as it is made of bits and an integer, is left to torch, for which it is ``int64``.
        """
        if bsym.sym.executor not in (None, self) or _gives_numbers(bsym):
            return False
        return super().can_fuse(bsym) and not _counts_bits(bsym)

    def fusion_pass(self, trace: Any) -> Any:
        """Returns the trace with one call in place of each group of fusible bound symbols. Thunder calls this."""
        start = time.perf_counter_ns()
        fused = from_trace(trace)
        producers, consumers = utils.producers_and_consumers(trace)
        counter = 0
        fused.bound_symbols = []
        for group in self._group(trace):
            if self._worth_fusing(group):
                fused.bound_symbols.append(self.fuse(Region(producers, consumers, group), counter))
                counter += 1
            else:
                fused.bound_symbols.extend(group)
        # What is computed again behind a write would be computed of what was written.
        fused = update_fusion_call_ctx(dce(fused if writes_in_place(trace) else rematerialize(fused)))
        milliseconds = (time.perf_counter_ns() - start) // 1_000_000
        fused.set_provenance(TraceProvenance(f"Fusion by fusioncache (took {milliseconds} milliseconds)"))
        return fused

    def _group(self, trace: Any) -> list[list[BoundSymbol]]:
        """Returns bound symbols in groups, in an order in which each reads what it reads in the trace."""
        groups: list[list[BoundSymbol]] = fuse_bound_symbols(trace, lambda a, b: self._fusible(a) and self._fusible(b))
        if not writes_in_place(trace) or keeps_order(trace, groups):
            return groups
        return consecutive_fusion(trace, lambda a, b: self._fusible(a) and self._fusible(b))  # type: ignore[no-any-return]

    def _compile_when_called(self, bound_symbols: list, inputs: list, outputs: list) -> Callable[..., Any]:
        function: Callable[..., Any] | None = None

        def call(*args: Any) -> Any:
            nonlocal function
            if function is not None:
                return function(*args)
            start = time.perf_counter()
            function = torch_function(bound_symbols, inputs, outputs)
            if self.own_backend() == "inductor":
                function = inductor_function(function)
            results = function(*args)
            event = CompileEvent(self.own_backend(), time.perf_counter() - start)
            for observer in self.observers:
                observer(event)
            return results

        return call

    def _fusible(self, node: Node) -> bool:
        return len(node.group_bsyms) > 1 or self.can_fuse(node.group_bsyms[0])

    def _worth_fusing(self, group: Sequence[BoundSymbol]) -> bool:
        """Tells whether a group computes anything. Changes of shape alone are views, which cost less as they are."""
        if len(group) == 1 and not self.can_fuse(group[0]):
            return False
        primitives = [primitive for bsym in group for primitive in _flatten(bsym)]
        return not all(op_traits(symbol_name(primitive.sym) or "").shape_only for primitive in primitives)


def _gives_numbers(bound_symbol: BoundSymbol) -> bool:
    results = bound_symbol.flat_proxy_outs
    return bool(results) and all(isinstance(result, NumberProxy) for result in results)


def _counts_bits(bound_symbol: BoundSymbol) -> bool:
    """Tells whether an operation computes with what Thunder makes of bits and an integer: a weak ``int8``."""
    proxies = (
        proxy
        for primitive in _flatten(bound_symbol)
        for proxy in (*primitive.flat_proxy_args, *primitive.flat_proxy_outs)
    )
    return any(isinstance(proxy, TensorProxy) and proxy.true_dtype is dtypes.int8_ for proxy in proxies)


def _flatten(bound_symbol: BoundSymbol) -> list[BoundSymbol]:
    if bound_symbol.sym.is_prim or not bound_symbol.subsymbols:
        return [bound_symbol]
    return [primitive for inner in bound_symbol.subsymbols for primitive in _flatten(inner)]
