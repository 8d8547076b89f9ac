"""What Thunder's passes looked at while they went over a program, and whether that is the same at other sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from fusioncache.accelerators.sizes.arguments import ArgumentSizes, Place
from fusioncache.accelerators.sizes.decisions import Decision
from fusioncache.accelerators.sizes.expressions import COMPARISONS, Expression, Number, evaluate
from fusioncache.accelerators.sizes.journal import Look
from fusioncache.ir.errors import Declined, Scope

type Expressions = tuple[Expression, ...]

_NO_SHAPES: Mapping[str, Expressions] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class PassJournal:
    """What Thunder's passes did with the sizes of one program.

    Attributes:
        sizes: of each argument, by its place: numbers of which this is about, and those that may be no others.
        looks: comparisons.
        unequal: arguments of operations that would be the same operation if they were equal.
        decisions: of others.
        expressions: each that may be in a final trace or a region.
        shapes: of tensors with a size that is none of these, by name: whoever computes with them runs as a whole.
    """

    sizes: Mapping[Place, tuple[int | Number, ...]]
    looks: tuple[Look, ...]
    unequal: tuple[tuple[Expressions, Expressions], ...]
    decisions: tuple[Decision, ...]
    expressions: frozenset[Expression]
    shapes: Mapping[str, tuple[Expression, ...]] = _NO_SHAPES

    def check(self, arguments: ArgumentSizes) -> Mapping[int, int]:
        """Returns the value of each number where the arguments have these sizes.

        Raises:
            Declined: if the passes might do something else there.
        """
        numbers = self.read(arguments)
        try:
            self._check(numbers)
        except ArithmeticError as error:
            raise Declined(str(error), Scope.LENGTH) from error
        return numbers

    def _check(self, numbers: Mapping[int, int]) -> None:
        for look in self.looks:
            left, right = (evaluate(each, numbers) for each in (look.left, look.right))
            if COMPARISONS[look.symbol](left, right) is not look.outcome:
                raise Declined(f"a Thunder pass may do something else: {look}", Scope.LENGTH)
        for one, other in self.unequal:
            if all(evaluate(left, numbers) == evaluate(right, numbers) for left, right in zip(one, other, strict=True)):
                raise Declined("two operations become the same at these sizes", Scope.LENGTH)
        for decision in self.decisions:
            if decision.ask(numbers) != decision.answer:
                raise Declined(f"{decision.function} decides otherwise", Scope.LENGTH)

    def can_compute_all(self, numbers: Mapping[int, int]) -> bool:
        """Tells whether there is each number of the final traces where sizes have these values."""
        try:
            return all(evaluate(each, numbers) is not None for each in self.expressions)
        except ArithmeticError:
            return False

    def read(self, arguments: ArgumentSizes) -> Mapping[int, int]:
        """Returns the value of each number where the arguments have these sizes.

        Raises:
            Declined: if a size is another one that is no number.
        """
        if arguments.keys() != self.sizes.keys():
            raise Declined("there are other arguments", Scope.LENGTH)
        numbers: dict[int, int] = {}
        for place, sizes in self.sizes.items():
            for size, value in zip(sizes, arguments[place], strict=True):
                if isinstance(size, Number) and value > 1:
                    numbers[size.position] = value
                elif size != value:
                    raise Declined(f"a size is {value}", Scope.LENGTH)
        return numbers
