"""Which sums of a residual stream backward can rebuild from what is saved for it anyway."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fusioncache.ir import TensorType
from fusioncache.template.vocabulary import ADD, ADDS, CONVERT, ELEMENTWISE, IDENTITY, passes_product_on, products

_PASSES_ON = {CONVERT} | IDENTITY


@dataclass(frozen=True, slots=True)
class Line:
    """One operation inside a fused call, by the names of its values.

    Attributes:
        operation: its name, such as ``prims.add``.
        operands: the values that it uses; None for one that is no tensor, which no recipe may use.
        results: the values that it defines.
        call: which fused call it belongs to.
    """

    operation: str
    operands: tuple[str | None, ...]
    results: tuple[str, ...]
    call: int


@dataclass(frozen=True, slots=True)
class Saved:
    """What a forward pass leaves to its backward pass.

    Attributes:
        names: the values that are saved.
        free: values that live on whether they are saved or not, such as parameters.
        outputs: values that leave the model, and so live on in the caller's hands.
    """

    names: Collection[str]
    free: Collection[str]
    outputs: Collection[str]


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a saved sum is computed from other values that backward has.

    Attributes:
        sum: the name of the value.
        parent: the value of the stream that it continues.
        lines: the positions of the operations, in order.
        inputs: the values that these start from.
    """

    sum: str
    parent: str
    lines: tuple[int, ...]
    inputs: tuple[str, ...]


def recipes_of(lines: Sequence[Line], types: Mapping[str, TensorType], saved: Saved) -> tuple[Recipe, ...]:
    """The recipe of each saved residual sum that has one, in the order of the forward pass.

    A residual sum is an add, through conversions, of a value of the same type that backward has as well. Linear in the
    lines, for a bounded number of saved values in each call.
    """
    finder = _Finder(lines, types, saved)
    found = (finder.recipe(name) for line in lines for name in line.results if finder.may_be_dropped(name))
    return tuple(recipe for recipe in found if recipe is not None)


class _Finder:
    def __init__(self, lines: Sequence[Line], types: Mapping[str, TensorType], saved: Saved):
        self.lines, self.types = lines, types
        self.available = {*saved.names, *saved.free}
        self.dropped = set(saved.names) - {*saved.free, *saved.outputs}
        self.place = {name: place for place, line in enumerate(lines) for name in line.results}
        self.product: dict[str, bool] = {}
        for line in lines:
            of_product = any(self.product.get(operand or "", False) for operand in line.operands)
            self.product.update(dict.fromkeys(line.results, products(line.operation, of_product)))

    def may_be_dropped(self, name: str) -> bool:
        return name in self.dropped and name in self.types

    def recipe(self, name: str) -> Recipe | None:
        parent = self._parent(name)
        if parent is None:
            return None
        used: set[int] = set()
        inputs: dict[str, None] = {}
        pending = [(name, False)]
        while pending:
            value, added = pending.pop()
            place = self.place.get(value)
            if place is None or self.lines[place].operation not in ELEMENTWISE:
                return None
            line = self.lines[place]
            used.add(place)
            added = line.operation in ADDS or (added and passes_product_on(line.operation))
            for operand in line.operands:
                if operand is None:
                    return None
                if self._is_at_hand(operand, line, added):
                    inputs.setdefault(operand)
                elif not self._may_be_computed(operand, line, added):
                    return None
                elif self.place.get(operand) not in used:
                    pending.append((operand, added))
        return Recipe(name, parent, tuple(sorted(used)), tuple(inputs))

    def _is_at_hand(self, operand: str, line: Line, added: bool) -> bool:
        """Whether a recipe may start from this operand. A product that was added in the kernel that computed it may
        have been contracted with the add into one rounding, and must be so again."""
        if operand not in self.available or operand not in self.types:
            return False
        return not (added and self.product.get(operand, False) and self._call(operand) == line.call)

    def _may_be_computed(self, operand: str, line: Line, added: bool) -> bool:
        """Whether a recipe may compute this operand. A product that was rounded before another kernel added it may
        not."""
        return not (added and self.product.get(operand, False) and self._call(operand) != line.call)

    def _call(self, name: str) -> int | None:
        place = self.place.get(name)
        return None if place is None else self.lines[place].call

    def _parent(self, name: str) -> str | None:
        """The value of the same type, at hand in backward, that this one is a sum on top of."""
        pending = list(self._addends(name))
        while pending:
            value = self._unconverted(pending.pop())
            if value in self.available:
                if self.types.get(value) == self.types[name]:
                    return value
            else:
                pending.extend(self._addends(value))
        return None

    def _addends(self, name: str) -> Iterator[str]:
        place = self.place.get(self._unconverted(name, through_available=True))
        if place is not None and self.lines[place].operation == ADD:
            yield from (operand for operand in reversed(self.lines[place].operands) if operand is not None)

    def _unconverted(self, name: str, *, through_available: bool = False) -> str:
        """What a value was before its conversions; as far as the first that is at hand, unless told."""
        while through_available or name not in self.available:
            place = self.place.get(name)
            if place is None or self.lines[place].operation not in _PASSES_ON:
                break
            operand = self.lines[place].operands[0]
            if operand is None:
                break
            name, through_available = operand, False
        return name
