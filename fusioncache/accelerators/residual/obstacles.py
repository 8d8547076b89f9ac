"""The obstacles because of which a residual stream, or a sum of one, stays as it is although there is a plan for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import chain

from fusioncache.accelerators.residual.rebuild import Line, Recipe
from fusioncache.ir import Arithmetic, TensorType
from fusioncache.ir.arithmetic import is_narrow

VARIES = "a residual stream whose compiler gives other bits if a sum is an input"
WRITTEN = "a residual sum of a value that is written in place"
UNSAVED = "a residual sum of an input that is not saved for backward"
APART = "a residual sum that several executors compute"
UNROUNDED = "a residual sum of values that its compiler does not round in every kernel"
CONTRACTED = "a residual sum of a product that its compiler does not contract in every kernel"


@dataclass(frozen=True, slots=True)
class Forward:
    """What must be known of a forward pass to say whether a recipe gives a saved sum again, bit for bit.

    Attributes:
        lines: the operations inside its fused calls.
        types: of the values that have a static shape.
        saved: the values that are saved for backward.
        written: the values that are written in place.
        executor: which one computes a fused call, by the call's number.
        arithmetic: of its compiler, by the call's number.
    """

    lines: Sequence[Line]
    types: Mapping[str, TensorType]
    saved: Set[str]
    written: Set[str]
    executor: Callable[[int], object]
    arithmetic: Callable[[int], Arithmetic]

    def obstacle(self, recipe: Recipe) -> str | None:
        """Returns why a recipe must not be used; None if it may."""
        calls = {self.lines[index].call for index in recipe.lines}
        if not self._is_untouched(recipe):
            return WRITTEN
        if any(name not in self.saved for name in recipe.inputs):
            return UNSAVED
        if len({self.executor(call) for call in calls}) > 1:
            return APART
        if any(not self.arithmetic(call).rounds for call in calls) and any(map(self._is_narrow, recipe.local)):
            return UNROUNDED
        if any(not self.arithmetic(call).contracts_alike for call in calls) and recipe.adds_product:
            return CONTRACTED
        return None

    def _is_narrow(self, name: str) -> bool:
        return is_narrow(self.types.get(name))

    def _is_untouched(self, recipe: Recipe) -> bool:
        inner = chain.from_iterable(self.lines[index].results for index in recipe.lines)
        return self.written.isdisjoint(inner) and self.written.isdisjoint(recipe.inputs)
