"""A fusion executor for all of torch's devices. It makes regions where nvFuser cannot.

Thunder groups bound symbols by the values that they take and return. An in-place write returns a new name, so names do
not order it with earlier and later reads of the same memory. Two inputs of a trace may alias, so here all inputs and
all their possible views count as one memory.

Where nvFuser makes the regions, a second executor follows it. That one fuses nothing; it warns once if the regions are
not shared because the transform is missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from functools import cache
from itertools import groupby
from typing import Any

import torch

from fusioncache.backends.api import Run, best_backend
from fusioncache.backends.bound_symbols import (
    BoundGraph,
    argument_names,
    flatten,
    leaves_of,
    may_write,
    symbol_name,
    symbol_named,
    to_plain,
    torch_function,
    written_values,
)
from fusioncache.backends.inductor.backend import inductor_function
from fusioncache.cache.results import with_torch_layouts
from fusioncache.ir import Declined, Instance, Scope
from fusioncache.ir.ops import TABLE, op_traits, shaping_inputs
from fusioncache.ir.template import layouts_of
from fusioncache.process.warning import logger, warn_once
from fusioncache.thunder_adapter.accelerator_api import Node, consecutive_fusion, fuse_bound_symbols
from fusioncache.thunder_adapter.api import (
    BoundSymbol,
    BoundSymbolTag,
    FusionExecutor,
    ImplInfo,
    NumberProxy,
    Region,
    TensorProxy,
    TraceProvenance,
    dce,
    dtypes,
    from_trace,
    get_compile_data,
    tree_map,
    unvariableify,
    update_fusion_call_ctx,
    utils,
)
from fusioncache.transform.claims import agrees_with_torch
from fusioncache.transform.passes import pick_ours
from fusioncache.transform.region import plain_region_of, region_of, tag_layouts
from fusioncache.transform.rematerialization import rematerialize

_OUTSIDE = ""
"""Represents the memory of all inputs. No value has this name."""


def writes_in_place(trace: Any) -> bool:
    """True if any bound symbol of a trace may write in place."""
    return any(map(may_write, trace.bound_symbols))


def keeps_order(trace: Any, groups: Sequence[Sequence[Any]]) -> bool:
    """True if groups preserve the order of each in-place write and all other uses of its memory.

    Args:
        trace: its bound symbols are in the order of the model's code.
        groups: the same bound symbols, in the order in which they would run. Each writer is a group of its own.
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
    """Returns for each value's name the value whose memory it may share, or ``_OUTSIDE`` for the inputs' memory."""
    memory: dict[str, str] = {}
    for leaf in (leaf for symbol in symbols for leaf in leaves_of(symbol)):
        taken = {memory.get(name, _OUTSIDE) for name in argument_names(leaf)}
        inherited = next(iter(taken)) if len(taken) == 1 else _OUTSIDE
        is_new = op_traits(symbol_name(leaf.sym) or "").allocates and not may_write(leaf)
        for proxy in leaf.flat_proxy_outs:
            memory.setdefault(proxy.name, proxy.name if is_new else inherited)
    return memory


_MOST_LAYOUTS = 1024
ALONE = "regions are compiled one by one, not shared: add transforms=[fusioncache.FusionCache()]"


class FusionCacheExecutor(FusionExecutor):
    """Groups elementwise operations, reductions and changes of shape into regions of primitive operations.

    Matrix products, indexing, random numbers and effects stay outside. So do operations that torch computes differently
    from these primitives: see ``claims.py``. Without the ``FusionCache`` transform each region is compiled alone.

    Args:
        name: the executor's name in Thunder.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._implmap = {symbol_named(name).id: ImplInfo() for name, traits in TABLE.items() if traits.fusible}

    def fuse(self, region: Region, fusion_counter: int) -> BoundSymbol:
        """Returns one call for a group of bound symbols."""
        inputs = [unvariableify(value) for value in region.inputs]
        outputs = [unvariableify(value) for value in region.outputs]
        primitives: list[BoundSymbol] = []
        for bound_symbol in region.bound_symbols:
            primitives += map(_plainly, tag_layouts(bound_symbol, flatten(bound_symbol)))
        name = f"Fusion{fusion_counter}"
        call = _AloneRegion(BoundGraph(inputs, primitives, outputs))
        fusion = self.register_temporary_operation(name, call, inputs=inputs, outputs=outputs, bsyms=primitives)
        call.fusion = fusion
        return fusion

    def cache_key(self) -> str:
        """Returns the part of a program's key for this executor: its name."""
        return str(self.name)

    def own_backend(self) -> str:
        """Returns the name of the backend with which this executor compiles a region alone."""
        return best_backend("cpu")

    def can_fuse(self, bsym: BoundSymbol) -> bool:
        """True if an operation may be part of a region. Operations that another executor claimed stay there.

        Operations on numbers alone are left to Python, because a region with them would fix their values. Operations on
        Thunder's ``int8`` result of bits and an integer are left to torch, where the dtype is ``int64``. Operations
        that torch computes differently from their primitives are left to torch as well.
        """
        if bsym.sym.executor not in (None, self) or bsym.sym.is_fusion or _gives_numbers(bsym):
            return False
        primitives = flatten(bsym)
        if (
            not all(map(self.can_execute, primitives))
            or any(map(_gives_numbers, primitives))
            or _counts_bits(primitives)
        ):
            return False
        return _only_moves(primitives) or agrees_with_torch(bsym)

    def fusion_pass(self, trace: Any) -> Any:
        """Returns the trace with one call for each group of fusible bound symbols. Thunder calls this."""
        start = time.perf_counter_ns()
        fused = from_trace(trace)
        producers, consumers = utils.producers_and_consumers(trace)
        counter = 0
        fused.bound_symbols = []
        # Grouping asks about each pair of neighbours, and again for each group that is made.
        fusible = {id(bound_symbol) for bound_symbol in trace.bound_symbols if self.can_fuse(bound_symbol)}
        for group in self._group(trace, fusible):
            if (len(group) > 1 or id(group[0]) in fusible) and _computes(group):
                fused.bound_symbols.append(self.fuse(Region(producers, consumers, group), counter))
                counter += 1
            else:
                fused.bound_symbols.extend(group)
        if counter and not has_transform():
            warn_once(ALONE)
        # Recomputation after a write would read the written value.
        fused = update_fusion_call_ctx(dce(fused if writes_in_place(trace) else rematerialize(fused)))
        milliseconds = (time.perf_counter_ns() - start) // 1_000_000
        fused.set_provenance(TraceProvenance(f"Fusion by fusioncache (took {milliseconds} milliseconds)"))
        return fused

    def _group(self, trace: Any, fusible: AbstractSet[int]) -> list[list[BoundSymbol]]:
        """Returns the bound symbols in groups, in an order that preserves what each one reads.

        Args:
            trace: the trace of an executor's pass.
            fusible: the ids of its bound symbols that may be part of a region.
        """

        def can_join(*nodes: Node) -> bool:
            return all(len(node.group_bsyms) > 1 or id(node.group_bsyms[0]) in fusible for node in nodes)

        groups: list[list[BoundSymbol]] = fuse_bound_symbols(trace, can_join)
        if not writes_in_place(trace) or keeps_order(trace, groups):
            return groups
        # If Thunder sorts a trace with writes, forward and backward alternate; Thunder splits them after this pass.
        return [list(part) for group in consecutive_fusion(trace, can_join) for _, part in groupby(group, _is_backward)]


class _AloneRegion:
    """Compiles a region at its first call, and runs its operations if that fails.

    Its results are checked once for each layout.

    Args:
        region: the region.

    Attributes:
        fusion: the bound symbol of the region in its trace.
        function: the compiled function; None before the first call.
    """

    def __init__(self, region: BoundGraph):
        self.fusion: BoundSymbol | None = None
        self._region = region
        self.function: Callable[..., Any] | None = None
        self._instance: Instance | None = None
        self._shaping: tuple[int, ...] = ()
        self._runs: dict[Any, Run] = {}

    def __call__(self, *args: Any) -> Any:
        """Returns the results of the region."""
        run = self._runs.get(self._find_layout(args))
        try:
            results = self._compute(args) if run is None else run(args)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # a run may be compiled again as well
            run, results = None, self._fall_back(args, error)
        return self._note_layout(args, results) if run is None else results

    def _find_layout(self, args: Sequence[Any]) -> Any:
        return layouts_of(args), *[args[index] for index in self._shaping]

    def _note_layout(self, args: Sequence[Any], results: Any) -> Any:
        """Returns the results of a call with a new layout, and keeps the run for later calls with it."""
        if self._instance is None and (instance := _read_instance(self.fusion)) is not None:
            self._instance, self._shaping = instance, shaping_inputs(instance.region)
        run = _take_sequence(self.function)
        if self._instance is not None:
            run, results = with_torch_layouts(run, self._instance, args, results)
        if len(self._runs) >= _MOST_LAYOUTS:
            self._runs.clear()
        self._runs[self._find_layout(args)] = run
        return results

    def _compute(self, args: Sequence[Any]) -> Any:
        if self.function is not None:
            return self.function(*args)
        compiled = torch_function(self._region)
        if best_backend("cpu") == "inductor":
            compiled = inductor_function(compiled)  # TorchInductor compiles it in its first call
        results = compiled(*args)
        self.function = compiled
        return results

    def _fall_back(self, args: Sequence[Any], error: Exception) -> Any:
        operations = torch_function(self._region)
        results, self.function = operations(*args), operations
        self._runs.clear()
        _warn_of_failure(error)
        return results


def has_transform() -> bool:
    """True if the function that Thunder compiles has the transform, or if this is not known."""
    transforms = getattr(get_compile_data(), "transforms", None)
    return transforms is None or bool(pick_ours(transforms))


def _warn_of_failure(error: Exception) -> None:
    logger.info("compiling a region failed", exc_info=error)
    message = str(error).partition("\n")[0]
    warn_once(f"a region could not be compiled and runs operation by operation: {type(error).__name__}: {message}")


def _plainly(primitive: BoundSymbol) -> BoundSymbol:
    """Returns a primitive with numbers of Python's own classes, because compilers accept no others."""
    if all(to_plain(arg) is arg for arg in primitive.flat_args):
        return primitive
    args, kwargs = tree_map(to_plain, (primitive.args, primitive.kwargs))
    return primitive.from_bsym(args=args, kwargs=kwargs)


def _is_backward(bound_symbol: BoundSymbol) -> bool:
    return BoundSymbolTag.BACKWARD in bound_symbol.tags


def _gives_numbers(bound_symbol: BoundSymbol) -> bool:
    results = bound_symbol.flat_proxy_outs
    return bool(results) and all(isinstance(result, NumberProxy) for result in results)


def _computes(group: Iterable[BoundSymbol]) -> bool:
    """True if a group computes anything. Changes of shape alone are views, which are cheaper unfused."""
    return not _only_moves([primitive for bound_symbol in group for primitive in flatten(bound_symbol)])


def _only_moves(primitives: Sequence[BoundSymbol]) -> bool:
    """True if primitives only change shapes, which torch can do with any tensor."""
    return all(op_traits(symbol_name(primitive.sym) or "").shape_only for primitive in primitives)


def _counts_bits(primitives: Sequence[BoundSymbol]) -> bool:
    """True if primitives use Thunder's result of bits and an integer, a weak ``int8``."""
    proxies = (proxy for primitive in primitives for proxy in (*primitive.flat_proxy_args, *primitive.flat_proxy_outs))
    return any(isinstance(proxy, TensorProxy) and proxy.true_dtype is dtypes.int8_ for proxy in proxies)


def _take_sequence(function: Callable[..., Any] | None) -> Run:
    assert function is not None
    return lambda args: function(*args)


def _read_instance(fusion: BoundSymbol | None) -> Instance | None:
    """Returns the region of a fused call as an instance of itself; None if it cannot be read."""
    assert fusion is not None
    try:
        region, plain = region_of(fusion), plain_region_of(fusion)
    except Declined as declined:
        declined.require(Scope.REGION)
        return None
    inputs, outputs = range(len(region.inputs)), range(len(region.outputs))
    return Instance(region, tuple(inputs), tuple(outputs), plain) if len(outputs) == len(fusion.output) else None


class UnsharedCheck(FusionExecutor):
    """Warns once if a trace has regions, but its function lacks the ``FusionCache`` transform. Changes no trace."""

    required_ops: frozenset[str] = frozenset()
    """Thunder's mark of an executor that does not fuse in general: the attribute is not None."""

    def can_fuse(self, bsym: BoundSymbol) -> bool:
        """Always False, because this executor fuses nothing."""
        return False

    def cache_key(self) -> str:
        """Returns the part of a program's key for this executor: its name, because it changes nothing."""
        return str(self.name)

    def fusion_pass(self, trace: Any) -> Any:
        """Returns the trace unchanged. Thunder calls this once for each trace."""
        if any(symbol.sym.is_fusion for symbol in trace.bound_symbols) and not has_transform():
            warn_once(ALONE)
        return trace


@cache
def unshared_check() -> UnsharedCheck:
    """Returns the check, the same object each time."""
    return UnsharedCheck("fusioncache_check")
