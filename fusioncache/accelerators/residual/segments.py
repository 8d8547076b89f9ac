"""The choice of which sums backward rebuilds, of those that it could, and what that costs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import isqrt

from fusioncache.accelerators.residual.plans import Choice, Cost, ResidualPlan, choose
from fusioncache.accelerators.residual.rebuild import Line, Recipe
from fusioncache.ir import TensorType


@dataclass(frozen=True, slots=True)
class Rebuilding:
    """The sums of one stream that backward rebuilds.

    Attributes:
        recipes: of the sums that are not saved any more, in the order of the forward pass.
        retained: whether a sum that was rebuilt on the way to another one waits for its own use; else it is rebuilt
            again.
        choice: the plan of the stream, and its alternatives.
    """

    recipes: tuple[Recipe, ...]
    retained: bool
    choice: Choice


def rebuildings(
    recipes: Sequence[Recipe],
    lines: Sequence[Line],
    types: Mapping[str, TensorType],
    wanted: ResidualPlan | None = None,
    budget: int | None = None,
) -> tuple[Rebuilding, ...]:
    """Chooses what to rebuild of each stream.

    Args:
        recipes: of all sums that can be rebuilt.
        lines: what these are made of.
        types: of every value that they name.
        wanted: the plan that the user asked for; None for the cheapest. ``FOLD`` is ``INLINE`` here: the terms are
            computed, so that there is nothing to fold.
        budget: how many bytes of a stream's sums may be kept alive.
    """
    plan = ResidualPlan.INLINE if wanted is ResidualPlan.FOLD else wanted
    streams = (_Stream(name, found, lines, types) for name, found in _by_stream(recipes).items())
    return tuple(stream.rebuilding(plan, budget) for stream in streams)


def _by_stream(recipes: Sequence[Recipe]) -> dict[str, list[Recipe]]:
    """Returns the recipes by the value that their stream starts from."""
    start: dict[str, str] = {}
    streams: dict[str, list[Recipe]] = defaultdict(list)
    for recipe in recipes:
        start[recipe.sum] = start.get(recipe.parent, recipe.parent)
        streams[start[recipe.sum]].append(recipe)
    return streams


class _Stream:
    """The sums of one stream, with the three figures of each plan."""

    def __init__(self, name: str, recipes: list[Recipe], lines: Sequence[Line], types: Mapping[str, TensorType]):
        self.name, self.recipes = name, recipes
        self.size = {recipe.sum: types[recipe.sum].bytes for recipe in recipes}
        self.moved = {
            recipe.sum: self.size[recipe.sum] + sum(types[value].bytes for value in recipe.inputs) for recipe in recipes
        }
        self.kernels = len({_shape(recipe, lines, types) for recipe in recipes})

    def rebuilding(self, wanted: ResidualPlan | None, budget: int | None) -> Rebuilding:
        every = self._segment_length(budget)
        costs = {
            ResidualPlan.CARRY: Cost(0, sum(self.size.values()), 0),
            ResidualPlan.SEGMENTED: self._segmented_cost(every),
            ResidualPlan.INLINE: self._inline_cost(),
        }
        plan = choose(costs, wanted, budget)
        dropped = {
            ResidualPlan.CARRY: (),
            ResidualPlan.SEGMENTED: self._drop(every),
            ResidualPlan.INLINE: tuple(self.recipes),
        }[plan]
        choice = Choice(self.name, len(self.recipes), plan, costs)
        return Rebuilding(dropped, plan is not ResidualPlan.INLINE, choice)

    def _segment_length(self, budget: int | None) -> int:
        """Returns the length of a segment: as short as the budget allows, else the one that keeps least alive."""
        best = isqrt(len(self.recipes)) + 1
        if budget is None:
            return best
        within = (every for every in range(1, best) if self._segmented_cost(every).alive <= budget)
        return next(within, best)

    def _drop(self, every: int) -> tuple[Recipe, ...]:
        """Returns all recipes but those of each sum that lies ``every`` steps behind one that is kept."""
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
        """Returns the cost of each sum from the start of the stream, with all sums on the way thrown away."""
        from_start: dict[str, int] = {}
        for recipe in self.recipes:
            before = sum(from_start.get(value, 0) for value in recipe.inputs)
            from_start[recipe.sum] = self.moved[recipe.sum] + before
        return Cost(sum(from_start.values()), 2 * max(self.size.values()), self.kernels)


def _shape(recipe: Recipe, lines: Sequence[Line], types: Mapping[str, TensorType]) -> Hashable:
    """Returns what is the same for recipes that one kernel computes."""
    operations = tuple(lines[index].operation for index in recipe.lines)
    return operations, types[recipe.sum], tuple(sorted(str(types[value]) for value in recipe.inputs))
