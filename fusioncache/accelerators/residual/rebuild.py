"""The sums of a residual stream that backward can rebuild from what is saved for it anyway."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fusioncache.ir import TensorType
from fusioncache.ir.ops import ADD, op_traits


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
        inputs: values that it is given. The caller may write into them before backward, so that those which are not
            saved must not be read there.
        outputs: values that the model returns, and that so stay alive with the caller.
    """

    names: Collection[str]
    inputs: Collection[str]
    outputs: Collection[str]


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a saved sum is computed from other values.

    Attributes:
        sum: the name of the value.
        parent: the value of the stream that it continues.
        lines: the positions of the operations, in order.
        inputs: the values that these start from: saved ones, and inputs of the forward pass.
        local: the values that are used in the call that computes them, in the forward pass or here.
        adds_product: whether a product is added in the call that computes it.
    """

    sum: str
    parent: str
    lines: tuple[int, ...]
    inputs: tuple[str, ...]
    local: tuple[str, ...]
    adds_product: bool


_MOST_LINES = 256
"""The longest recipe. One of more operations costs more than the memory is worth, and so does the search for it."""


def recipes_of(lines: Sequence[Line], types: Mapping[str, TensorType], saved: Saved) -> tuple[Recipe, ...]:
    """Returns the recipe of each saved residual sum that has one, in the order of the forward pass.

    A residual sum is an add, through conversions, of a value of the same type that backward has as well, or that was
    an input of the forward pass. Linear in the lines.
    """
    finder = _Finder(lines, types, saved)
    found = (finder.recipe(name) for name in finder.index if finder.may_be_dropped(name))
    return tuple(recipe for recipe in found if recipe is not None)


class _Finder:
    def __init__(self, lines: Sequence[Line], types: Mapping[str, TensorType], saved: Saved):
        self.lines, self.types = lines, types
        self.available = {*saved.names, *saved.inputs}
        self.dropped = set(saved.names) - {*saved.inputs, *saved.outputs}
        self.index: dict[str, int] = {}
        self.product: dict[str, bool] = {}
        self.parents = _Parents(self.available, types)
        for index, line in enumerate(lines):
            self.index.update(dict.fromkeys(line.results, index))
            of_product = any(self.product.get(operand or "", False) for operand in line.operands)
            self.product.update(dict.fromkeys(line.results, op_traits(line.operation).may_be_product(of_product)))
            self.parents.read(line)

    def may_be_dropped(self, name: str) -> bool:
        return name in self.dropped and name in self.types

    def recipe(self, name: str) -> Recipe | None:
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
                adds_product |= added and here and self.product.get(operand, False)
                if self._is_at_hand(operand, line, added):
                    inputs.setdefault(operand)
                elif self._may_be_computed(operand, line, added):
                    pending.append((operand, added))
                    here = True
                else:
                    return None
                if here:
                    local.setdefault(operand)
        indices = {index for index, _ in seen}
        return Recipe(name, parent, tuple(sorted(indices)), tuple(inputs), tuple(local), adds_product)

    def _is_at_hand(self, operand: str, line: Line, added: bool) -> bool:
        """Whether a recipe may start from this operand.

        A product that was added in the kernel that computed it may have been contracted with the add into one rounding,
        and must be so again.
        """
        if operand not in self.available or operand not in self.types:
            return False
        return not (added and self.product.get(operand, False) and self._call(operand) == line.call)

    def _may_be_computed(self, operand: str, line: Line, added: bool) -> bool:
        """Whether a recipe may compute this operand: not a product that was rounded before another kernel added it."""
        return not (added and self.product.get(operand, False) and self._call(operand) != line.call)

    def _call(self, name: str) -> int | None:
        index = self.index.get(name)
        return None if index is None else self.lines[index].call


class _Parents:
    """Finds what each value is a sum on top of. Reads every line once, in order.

    Sums share operands as they like, so a walk up from each of them could pass a value on very many ways.
    """

    def __init__(self, available: Collection[str], types: Mapping[str, TensorType]):
        self._available, self._types = available, types
        self._origin: dict[str, str] = {}
        self._addends: dict[str, dict[TensorType, str]] = {}

    def read(self, line: Line) -> None:
        """Takes in the next line."""
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
        """Returns the first value of the same type, at hand in backward, among what this one adds up; or None."""
        return self._addends.get(self._origin.get(name, name), {}).get(self._types[name])

    def _skip_conversions(self, name: str) -> str:
        """Returns what a value was before its conversions, as far as the first that is at hand."""
        return name if name in self._available else self._origin.get(name, name)

    def _at_hand(self, operand: str) -> Iterator[tuple[TensorType, str]]:
        """Yields the first value of each type that is at hand: the operand itself, or what it adds up."""
        value = self._skip_conversions(operand)
        if value not in self._available:
            yield from self._addends.get(value, {}).items()
        elif value in self._types:
            yield self._types[value], value
