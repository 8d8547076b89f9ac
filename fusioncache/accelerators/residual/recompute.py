"""Saves fewer sums of residual streams in forward and rebuilds them in backward, by the user's options."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fusioncache.accelerators.residual.chaining import replan_streams
from fusioncache.accelerators.residual.plans import Choice, ResidualOptions
from fusioncache.accelerators.residual.rebuild import (
    Forward,
    OperationLine,
    Rebuilding,
    Saved,
    SumRecipe,
    rebuildings,
    recipes_of,
)
from fusioncache.backends.bound_symbols import symbol_name, written_values
from fusioncache.ir import TensorType
from fusioncache.observe.record.observations import PlanCost
from fusioncache.thunder_adapter.api import PrimIDs, Proxy, TensorProxy, tracectx, tree_flatten, variableify
from fusioncache.transform.passes import Accelerator, Pass, TraceContext, pair_passes
from fusioncache.transform.rewrite import SavedSwap, find_saved, free_numbers, fuse
from fusioncache.transform.transform import TemplateTransform


@dataclass(frozen=True, slots=True)
class Recompute(SavedSwap):
    """The changes that a backward trace needs once its forward trace saves fewer sums.

    Attributes:
        rebuildings: the sums to rebuild, stream by stream.
        operations: the bound symbols of each recipe, by the name of the sum.
        proxies: the proxy of each sum and of each input of a recipe, by name.
        models: a fused call of the forward trace that computes the sum, by the name of the sum. The executor of that
            call makes the call that rebuilds the sum.
    """

    rebuildings: tuple[Rebuilding, ...]
    operations: Mapping[str, tuple[Any, ...]]
    proxies: Mapping[str, Any]
    models: Mapping[str, Any]


def drop_sums(trace: Any, options: ResidualOptions, transform: TemplateTransform) -> tuple[Any, Recompute | None]:
    """Returns a forward trace that saves fewer sums, and the changes for its backward trace; None if there are none.

    The bits are the same, and backward reads only values that were saved for it before: so autograd still notices
    the user's in-place writes between the two.

    Args:
        trace: a forward trace, after fusion.
        options: the user's.
        transform: of the trace.
    """
    recompute = _Reader(trace, transform).recompute(options)
    if recompute is None:
        return trace, None
    return recompute.save(trace, "Residual sums not saved by fusioncache"), recompute


class _Reader:
    """Reads a forward trace as names and types."""

    def __init__(self, trace: Any, transform: TemplateTransform):
        self.trace = trace
        self.transform = transform
        self.proxies: dict[str, Any] = {}
        self.types: dict[str, TensorType] = {}
        self.bound: list[Any] = []
        self.lines = list(self._lines())

    def recompute(self, options: ResidualOptions) -> Recompute | None:
        saved = self._find_saved()
        if saved is None:
            return None
        recipes = list(self._select_sound(recipes_of(self.lines, self.types, saved), saved))
        found = rebuildings(recipes, self.lines, self.types, options.plan, options.budget)
        recipes = [recipe for rebuilding in found for recipe in rebuilding.recipes]
        if not found:
            return None
        dropped = {recipe.sum for recipe in recipes}
        remaining = [self.proxies[name] for name in saved.names if name not in dropped]
        operations = {recipe.sum: tuple(self.bound[line] for line in recipe.lines) for recipe in recipes}
        models = {recipe.sum: self.trace.bound_symbols[self.lines[recipe.lines[-1]].call] for recipe in recipes}
        return Recompute(tuple(saved.names), tuple(remaining), found, operations, self.proxies, models)

    def _select_sound(self, recipes: Sequence[SumRecipe], saved: Saved) -> Iterator[SumRecipe]:
        """Yields the recipes that give the same bits; reports why others are not used."""
        symbols = self.trace.bound_symbols
        # Memory of a value that is written in place anywhere may contain another value.
        written = {name for symbol in symbols for name in written_values(symbol)} if recipes else set()
        forward = Forward(
            self.lines,
            self.types,
            set(saved.names),
            written,
            lambda call: symbols[call].sym.executor,
            lambda call: self.transform.backends.arithmetic(symbols[call]),
        )
        for recipe in recipes:
            problem = forward.obstacle(recipe)
            if problem is None:
                yield recipe
            else:
                self.transform.report_unchanged(problem)

    def _lines(self) -> Iterator[OperationLine]:
        for call, symbol in enumerate(self.trace.bound_symbols):
            for inner in symbol.subsymbols if symbol.sym.is_fusion else ():
                self.bound.append(inner)
                for proxy in (*inner.flat_proxy_args, *inner.flat_proxy_outs):
                    self._note(proxy)
                operands = tuple(proxy.name if proxy.name in self.types else None for proxy in inner.flat_proxy_args)
                results = tuple(proxy.name for proxy in inner.flat_proxy_outs)
                yield OperationLine(symbol_name(inner.sym) or "unknown", operands, results, call)

    def _note(self, proxy: Any) -> None:
        self.proxies[proxy.name] = proxy
        if type(proxy) is TensorProxy and all(isinstance(size, int) for size in proxy._shape):
            self.types[proxy.name] = TensorType(proxy.dtype.full_name, tuple(proxy._shape), str(proxy.device))

    def _find_saved(self) -> Saved | None:
        """Returns the saved values; None if there are none, as without a backward pass."""
        tensors = find_saved(self.trace)
        if not tensors:
            return None
        for proxy in tensors:
            self.proxies.setdefault(proxy.name, proxy)
        values = self.trace.bound_symbols[-1].args[0]
        inputs = {proxy.name for proxy in values["flat_args"] if isinstance(proxy, Proxy)}
        outputs = {proxy.name for proxy in tree_flatten(values["output"])[0] if isinstance(proxy, Proxy)}
        return Saved(tuple(proxy.name for proxy in tensors), inputs, outputs)


def rebuild_sums(trace: Any, recompute: Recompute) -> Any:
    """Returns a backward trace that takes the values still saved, and rebuilds other sums right before their first use.

    Raises:
        RuntimeError: if this is not the backward trace of that forward trace. Then it cannot run unchanged either.
    """
    change = _Rebuilder(trace, recompute).insert_calls
    return recompute.take(trace, change, "Residual sums rebuilt by fusioncache")


class _Rebuilder:
    """Inserts calls that rebuild sums into a backward trace."""

    def __init__(self, trace: Any, recompute: Recompute):
        self.trace, self.recompute = trace, recompute
        self.recipes = {recipe.sum: recipe for found in recompute.rebuildings for recipe in found.recipes}
        self.retained = {recipe.sum for found in recompute.rebuildings if found.retained for recipe in found.recipes}
        self.rebuilt: set[str] = set()
        self.name = free_numbers(recompute.models.values(), trace)

    def insert_calls(self, symbols: Iterable[Any]) -> Iterator[Any]:
        for symbol in symbols:
            if symbol.sym.id is not PrimIDs.DEL:
                for proxy in symbol.flat_proxy_args:
                    if proxy.name in self.recipes and proxy.name not in self.rebuilt:
                        yield from self._rebuild(proxy.name)
            yield symbol

    def _rebuild(self, sum_: str) -> Iterator[Any]:
        """Yields the calls that compute a sum, from the last sum that is available."""
        renamed: dict[Any, Any] = {}
        for recipe in self._missing(sum_):
            total = self.recompute.proxies[recipe.sum]
            if recipe.sum == sum_ or recipe.sum in self.retained:
                self.rebuilt.add(recipe.sum)
            else:
                with tracectx(self.trace):
                    renamed[variableify(total)] = TensorProxy(like=total)
            yield self._call(recipe, renamed)

    def _missing(self, sum_: str) -> list[SumRecipe]:
        """Returns the recipes of this sum and of all sums that it needs, in the order of their dependences."""
        order: dict[str, SumRecipe] = {}
        pending = [sum_]
        while pending:
            recipe = self.recipes[pending[-1]]
            needed = [name for name in recipe.inputs if name in self.recipes and name not in self.rebuilt]
            waiting = [name for name in needed if name not in order]
            pending.extend(waiting)
            if not waiting:
                order.setdefault(pending.pop(), recipe)
        return list(order.values())

    def _call(self, recipe: SumRecipe, renamed: Mapping[Any, Any]) -> Any:
        def new(name: str) -> Any:
            proxy = self.recompute.proxies[name]
            return renamed.get(variableify(proxy), proxy)

        operations = [symbol.from_bsym_swap_proxies(renamed) for symbol in self.recompute.operations[recipe.sum]]
        inputs = [new(name) for name in recipe.inputs]
        return fuse(
            self.recompute.models[recipe.sum].sym.executor, next(self.name), inputs, [new(recipe.sum)], operations
        )


class ResidualStreams(Accelerator):
    """The accelerator of residual streams.

    Args:
        options: the user's.
        transform: of the traces.

    Attributes:
        options: the same.
        choices: the plan of each stream, with the costs of the alternatives.
    """

    name = "residual"

    def __init__(self, options: ResidualOptions, transform: TemplateTransform):
        self.options = options
        self._transform = transform
        self.choices: list[Choice] = []

    def passes(self) -> Sequence[Pass]:
        """Returns the pass that saves fewer sums, and the one that plans streams."""
        saving = pair_passes("saved sums", self._save_fewer, rebuild_sums)
        return saving, Pass("residual streams", self._plan_streams)

    def _save_fewer(self, trace: Any, context: TraceContext) -> tuple[Any, Recompute | None]:
        """Saves fewer sums in forward, if the user asked for it."""
        if not self.options.recompute:
            return trace, None
        trace, recompute = drop_sums(trace, self.options, self._transform)
        if recompute:
            self._note([found.choice for found in recompute.rebuildings], context)
        return trace, recompute

    def _plan_streams(self, trace: Any, context: TraceContext) -> Any:
        """Passes sums on from region to region, or rebuilds them, by the cheapest plan or the one asked for."""
        trace, choices = replan_streams(trace, self.options, self._transform)
        self._note(choices, context)
        return trace

    def ingredients(self) -> str:
        """Returns the options as text."""
        return str(self.options)

    def _note(self, choices: Sequence[Choice], context: TraceContext) -> None:
        """Records the choices for the streams of a trace."""
        self.choices.extend(choices)
        for choice in choices:
            costs = (PlanCost(plan.value, cost.moved, cost.alive, cost.kernels) for plan, cost in choice.costs.items())
            context.notes.record_choice(choice.stream, choice.sums, choice.plan.value, costs)
