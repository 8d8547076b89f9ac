"""What Thunder's passes looked at while they went over a program, and whether that is the same at other sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fusioncache.tracing.lengths.arguments import ArgumentSizes, Place
from fusioncache.tracing.lengths.expressions import COMPARISONS, Expression, Number, evaluate
from fusioncache.tracing.lengths.journal import Look
from fusioncache.tracing.lengths.replay import Different
from fusioncache.tracing.lengths.sizes import SymbolicSize, plain
from fusioncache.tracing.lengths.structure import exchange

type Expressions = tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Decision:
    """Something that was decided by what is not interpreted, as by the library that has a kernel or has none.

    Attributes:
        function: decides.
        args: what it was asked about, with symbols for sizes.
        answer: what it decided.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    answer: Any


@dataclass(frozen=True, slots=True)
class PassJournal:
    """What Thunder's passes did with the sizes of one program.

    Attributes:
        sizes: of each argument, by its place: numbers of which this is about, and those that may be no others.
        looks: comparisons.
        unequal: arguments of operations that would be the same operation if they were equal.
        decisions: of others.
        expressions: each that is in a final trace.
    """

    sizes: Mapping[Place, tuple[int | Number, ...]]
    looks: tuple[Look, ...]
    unequal: tuple[tuple[Expressions, Expressions], ...]
    decisions: tuple[Decision, ...]
    expressions: frozenset[Expression]

    def check(self, arguments: ArgumentSizes) -> Mapping[int, int]:
        """Returns the value of each number where the arguments have these sizes.

        Raises:
            Different: if the passes might do something else there.
        """
        numbers = self.read(arguments)
        for look in self.looks:
            left, right = (evaluate(each, numbers) for each in (look.left, look.right))
            if COMPARISONS[look.symbol](left, right) is not look.outcome:
                raise Different(f"a pass of Thunder's may do something else: {look}")
        for one, other in self.unequal:
            if all(evaluate(left, numbers) == evaluate(right, numbers) for left, right in zip(one, other, strict=True)):
                raise Different("two operations are the same at these sizes")
        for decision in self.decisions:
            if _ask(decision, numbers) != decision.answer:
                raise Different(f"{decision.function.__name__} decides otherwise")
        return numbers

    def read(self, arguments: ArgumentSizes) -> Mapping[int, int]:
        """Returns the value of each number where the arguments have these sizes.

        Raises:
            Different: if a size is another one that is no number.
        """
        if arguments.keys() != self.sizes.keys():
            raise Different("there are other arguments")
        numbers: dict[int, int] = {}
        for place, sizes in self.sizes.items():
            for size, value in zip(sizes, arguments[place], strict=True):
                if isinstance(size, Number) and value > 1:
                    numbers[size.position] = value
                elif size != value:
                    raise Different(f"a size is {value}")
        return numbers


def make_plain(value: Any, numbers: Mapping[int, int] | None) -> Any:
    """Returns a structure with plain sizes: those of these numbers, or those that symbols have."""
    from thunder.core.proxies import TensorProxy
    from thunder.core.trace import TraceCtx, tracectx

    def make_leaf_plain(leaf: Any) -> Any:
        if isinstance(leaf, SymbolicSize):
            return plain(leaf) if numbers is None else evaluate(leaf.expression, numbers)
        if isinstance(leaf, TensorProxy):
            return leaf.replace(shape=tuple(map(make_leaf_plain, leaf.shape)))
        return leaf

    with tracectx(TraceCtx()):
        return exchange(value, make_leaf_plain)


def _ask(decision: Decision, numbers: Mapping[int, int]) -> Any:
    return decision.function(*make_plain(decision.args, numbers))
