"""Finds the sums of a residual stream that backward can rebuild from saved values, and chooses among them by cost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from math import isqrt

from fusioncache.accelerators.residual.plans import Choice, Cost, ResidualPlan, choose
from fusioncache.ir import Arithmetic, TensorType
from fusioncache.ir.ops import ADD, is_narrow, op_traits


@dataclass(frozen=True, slots=True)
class OperationLine:
    """One operation inside a fused call, by the names of its values.

    Attributes:
        operation: its name, such as ``prims.add``.
        operands: the values that it uses; None for one that is not a tensor, which no recipe may use.
        results: the values that it defines.
        call: the number of the fused call that contains it.
    """

    operation: str
    operands: tuple[str | None, ...]
    results: tuple[str, ...]
    call: int


@dataclass(frozen=True, slots=True)
class Saved:
    """The values that are available after a forward pass.

    Attributes:
        names: the values that are saved for backward.
        inputs: of the forward pass. The caller may write into them before backward, so backward must not read inputs
            that are not saved.
        outputs: values that the model returns, so that the caller keeps them alive.
    """

    names: Collection[str]
    inputs: Collection[str]
    outputs: Collection[str]


@dataclass(frozen=True, slots=True)
class SumRecipe:
    """The operations that compute a saved sum from other values.

    Attributes:
        sum: the name of the value.
        parent: the value of the stream that it continues.
        lines: the positions of the operations, in order.
        inputs: the values that the operations start from: saved ones, and inputs of the forward pass.
        local: the values that are used in the call that computes them, in the forward pass or in the recipe's.
        adds_product: whether a product is added in the call that computes it.
    """

    sum: str
    parent: str
    lines: tuple[int, ...]
    inputs: tuple[str, ...]
    local: tuple[str, ...]
    adds_product: bool


_MOST_LINES = 256
"""The maximum length of a recipe. A longer one costs more than the memory is worth, and so does the search for it."""


def recipes_of(lines: Sequence[OperationLine], types: Mapping[str, TensorType], saved: Saved) -> tuple[SumRecipe, ...]:
    """Returns the recipe of each saved residual sum that has one, in the order of the forward pass.

    A residual sum is an add, perhaps through conversions, to a value of the same type that is saved for backward or is
    an input of the forward pass. Linear in the lines.
    """
    finder = _RecipeFinder(lines, types, saved)
    found = (finder.recipe(name) for name in finder.index if name in finder.dropped)
    return tuple(recipe for recipe in found if recipe is not None)


class _RecipeFinder:
    def __init__(self, lines: Sequence[OperationLine], types: Mapping[str, TensorType], saved: Saved):
        self.lines, self.types = lines, types
        self.available = {*saved.names, *saved.inputs}
        self.dropped = (set(saved.names) & types.keys()) - {*saved.inputs, *saved.outputs}
        self.index: dict[str, int] = {}
        self.product: dict[str, bool] = {}
        self.parents = _Parents(self.available, types)
        for index, line in enumerate(lines):
            self.index.update(dict.fromkeys(line.results, index))
            of_product = any(self.product.get(operand or "", False) for operand in line.operands)
            self.product.update(dict.fromkeys(line.results, op_traits(line.operation).may_be_product(of_product)))
            self.parents.read_line(line)

    def recipe(self, name: str) -> SumRecipe | None:
        parent = self.parents.parent(name)
        if parent is None:
            return None
        inputs: dict[str, None] = {}
        local: dict[str, None] = {}
        adds_product = False
        seen: set[tuple[int, bool]] = set()
        pending = [(name, False)]
        while pending:
            value, added = pending.pop()
            index = self.index.get(value)
            if index is None or len(seen) == _MOST_LINES:
                return None
            line = self.lines[index]
            traits = op_traits(line.operation)
            if not traits.elementwise:
                return None
            added = traits.adds or (added and traits.passes_product)
            if (index, added) in seen:
                continue
            seen.add((index, added))
            for operand in line.operands:
                if operand is None:
                    return None
                here = self._call(operand) == line.call
                added_product = added and self.product.get(operand, False)
                adds_product |= added_product and here
                # A product that was added in the kernel that computed it may have been contracted with the add into one
                # rounding, so the recipe must contract it as well: it does not start from it. A product that another
                # kernel added was rounded before: the recipe does not compute it.
                if operand in self.available and operand in self.types and not (added_product and here):
                    inputs.setdefault(operand)
                elif here or not added_product:
                    pending.append((operand, added))
                    here = True
                else:
                    return None
                if here:
                    local.setdefault(operand)
        indices = {index for index, _ in seen}
        return SumRecipe(name, parent, tuple(sorted(indices)), tuple(inputs), tuple(local), adds_product)

    def _call(self, name: str) -> int | None:
        index = self.index.get(name)
        return None if index is None else self.lines[index].call


class _Parents:
    """Finds the parent of each sum. Reads every line once, in order.

    Sums may share operands, so that a walk from each of them could reach a value on very many paths.
    """

    def __init__(self, available: Collection[str], types: Mapping[str, TensorType]):
        self._available, self._types = available, types
        self._origin: dict[str, str] = {}
        self._addends: dict[str, dict[TensorType, str]] = {}

    def read_line(self, line: OperationLine) -> None:
        """Reads the next line."""
        operands = [operand for operand in line.operands if operand is not None]
        if line.operation == ADD:
            found: dict[TensorType, str] = {}
            for operand in operands:
                for type_, value in self._at_hand(operand):
                    found.setdefault(type_, value)
            self._addends.update(dict.fromkeys(line.results, found))
        elif op_traits(line.operation).conversion and operands and operands[0] == line.operands[0]:
            self._origin.update(dict.fromkeys(line.results, self._skip_conversions(operands[0])))

    def parent(self, name: str) -> str | None:
        """Returns the first available value of the same type among the addends of a value, or None."""
        return self._addends.get(self._origin.get(name, name), {}).get(self._types[name])

    def _skip_conversions(self, name: str) -> str:
        """Returns the value before a chain of conversions, or the first one in the chain that is available."""
        return name if name in self._available else self._origin.get(name, name)

    def _at_hand(self, operand: str) -> Iterator[tuple[TensorType, str]]:
        """Yields the first available value of each type: the operand itself, or else its addends."""
        value = self._skip_conversions(operand)
        if value not in self._available:
            yield from self._addends.get(value, {}).items()
        elif value in self._types:
            yield self._types[value], value


@dataclass(frozen=True, slots=True)
class Rebuilding:
    """The sums of one stream that backward rebuilds.

    Attributes:
        recipes: of the sums that are no longer saved, in the order of the forward pass.
        retained: whether a sum that was rebuilt for another one is kept until its own use; else it is rebuilt again.
        choice: the plan of the stream, and its alternatives.
    """

    recipes: tuple[SumRecipe, ...]
    retained: bool
    choice: Choice


def rebuildings(
    recipes: Sequence[SumRecipe],
    lines: Sequence[OperationLine],
    types: Mapping[str, TensorType],
    requested: ResidualPlan | None = None,
    budget: int | None = None,
) -> tuple[Rebuilding, ...]:
    """Returns the sums of each stream to rebuild.

    Args:
        recipes: of all sums that can be rebuilt.
        lines: the operations to which recipes refer.
        types: of every value in the recipes.
        requested: the user's plan; None for the cheapest. ``FOLD`` is ``INLINE`` here: the terms are computed, so that
            there is nothing to fold.
        budget: how many bytes of a stream's sums may be kept alive.
    """
    plan = ResidualPlan.INLINE if requested is ResidualPlan.FOLD else requested
    streams = (_Stream(name, found, lines, types) for name, found in _by_stream(recipes).items())
    return tuple(stream.rebuilding(plan, budget) for stream in streams)


def _by_stream(recipes: Sequence[SumRecipe]) -> dict[str, list[SumRecipe]]:
    """Returns the recipes, grouped by the value that their stream starts from."""
    start: dict[str, str] = {}
    streams: dict[str, list[SumRecipe]] = defaultdict(list)
    for recipe in recipes:
        start[recipe.sum] = start.get(recipe.parent, recipe.parent)
        streams[start[recipe.sum]].append(recipe)
    return streams


class _Stream:
    """The sums of one stream, with the three figures of each plan."""

    def __init__(
        self, name: str, recipes: list[SumRecipe], lines: Sequence[OperationLine], types: Mapping[str, TensorType]
    ):
        self.name, self.recipes = name, recipes
        self.size = {recipe.sum: types[recipe.sum].bytes for recipe in recipes}
        self.moved = {
            recipe.sum: self.size[recipe.sum] + sum(types[value].bytes for value in recipe.inputs) for recipe in recipes
        }
        self.kernels = len({_shape(recipe, lines, types) for recipe in recipes})

    def rebuilding(self, requested: ResidualPlan | None, budget: int | None) -> Rebuilding:
        every = self._segment_length(budget)
        costs = {
            ResidualPlan.CARRY: Cost(0, sum(self.size.values()), 0),
            ResidualPlan.SEGMENTED: self._segmented_cost(every),
            ResidualPlan.INLINE: self._inline_cost(),
        }
        plan = choose(costs, requested, budget)
        dropped = {
            ResidualPlan.CARRY: (),
            ResidualPlan.SEGMENTED: self._drop(every),
            ResidualPlan.INLINE: tuple(self.recipes),
        }[plan]
        choice = Choice(self.name, len(self.recipes), plan, costs)
        return Rebuilding(dropped, plan is not ResidualPlan.INLINE, choice)

    def _segment_length(self, budget: int | None) -> int:
        """Returns the length of a segment: the shortest within the budget, else the one that keeps least alive."""
        best = isqrt(len(self.recipes)) + 1
        if budget is None:
            return best
        within = (every for every in range(1, best) if self._segmented_cost(every).alive <= budget)
        return next(within, best)

    def _drop(self, every: int) -> tuple[SumRecipe, ...]:
        """Returns all recipes except those of kept sums, which are ``every`` steps apart."""
        steps: dict[str, int] = {}
        for recipe in self.recipes:
            steps[recipe.sum] = (1 + max(steps.get(value, 0) for value in recipe.inputs)) % every
        return tuple(recipe for recipe in self.recipes if steps[recipe.sum])

    def _segmented_cost(self, every: int) -> Cost:
        dropped = self._drop(every)
        if not dropped:
            return Cost(0, sum(self.size.values()), 0)
        rebuilt = sum(self.size[recipe.sum] for recipe in dropped)
        segments = -(-len(dropped) // (every - 1))
        kept = sum(self.size.values()) - rebuilt
        return Cost(sum(self.moved[recipe.sum] for recipe in dropped), kept + rebuilt // segments, self.kernels)

    def _inline_cost(self) -> Cost:
        """Returns the cost of rebuilding each sum from the start of the stream, without keeping sums on the way."""
        from_start: dict[str, int] = {}
        for recipe in self.recipes:
            before = sum(from_start.get(value, 0) for value in recipe.inputs)
            from_start[recipe.sum] = self.moved[recipe.sum] + before
        return Cost(sum(from_start.values()), 2 * max(self.size.values()), self.kernels)


def _shape(recipe: SumRecipe, lines: Sequence[OperationLine], types: Mapping[str, TensorType]) -> Hashable:
    """Returns a key that is the same for recipes that one kernel computes."""
    operations = tuple(lines[index].operation for index in recipe.lines)
    return operations, types[recipe.sum], tuple(sorted(str(types[value]) for value in recipe.inputs))


VARIES = "a residual stream whose compiler gives other bits if a sum is an input"
WRITTEN = "a residual sum of a value that is written in place"
UNSAVED = "a residual sum of an input that is not saved for backward"
APART = "a residual sum that several executors compute"
UNROUNDED = "a residual sum of values that its compiler does not round in every kernel"
CONTRACTED = "a residual sum of a product that its compiler does not contract in every kernel"


@dataclass(frozen=True, slots=True)
class Forward:
    """The properties of a forward pass that decide whether a recipe computes a saved sum again, bit for bit.

    Attributes:
        lines: the operations inside its fused calls.
        types: of the values that have a static shape.
        saved: the values that are saved for backward.
        written: the values that are written in place.
        executor: returns the executor of a fused call, by the call's number.
        arithmetic: returns the arithmetic of a fused call's compiler, by the call's number.
    """

    lines: Sequence[OperationLine]
    types: Mapping[str, TensorType]
    saved: Set[str]
    written: Set[str]
    executor: Callable[[int], object]
    arithmetic: Callable[[int], Arithmetic]

    def obstacle(self, recipe: SumRecipe) -> str | None:
        """Returns why a recipe must not be used; None if it may be."""
        lines = [self.lines[index] for index in recipe.lines]
        calls = {line.call for line in lines}
        if not self.written.isdisjoint([*recipe.inputs, *(name for line in lines for name in line.results)]):
            return WRITTEN
        if any(name not in self.saved for name in recipe.inputs):
            return UNSAVED
        if len({self.executor(call) for call in calls}) > 1:
            return APART
        has_narrow = any(is_narrow(self.types.get(name)) for name in recipe.local)
        if has_narrow and any(not self.arithmetic(call).rounds for call in calls):
            return UNROUNDED
        if any(not self.arithmetic(call).contracts_alike for call in calls) and recipe.adds_product:
            return CONTRACTED
        return None
