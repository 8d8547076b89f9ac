"""The templates of a general program, cut into parts: what is the same at all sizes is there once.

A template is made of operations, types and literals: thousands in a program of a few layers. Some have a number in them
that varies, and most of these are equal to others. So each part is there once, what is made of parts that are the same
at all sizes is, too, and at other sizes only the rest is made. That takes less time, and it leaves less behind: as soon
as a quarter more objects are there than before, Python's collector stops everything to look at each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fusioncache.accelerators.programs.general import read_constant, write_number
from fusioncache.accelerators.programs.text import TemplateReference
from fusioncache.accelerators.sizes.expressions import Expression, Float, evaluate
from fusioncache.ir import Const, Graph, Instance, Op, TensorType
from fusioncache.ir.graph import Arg, ValueType

type Make = Callable[..., Any]
type Part = int
"""The position of a part among all."""


@dataclass(frozen=True, slots=True)
class _Places:
    """Where the graphs of a template are among the parts.

    Attributes:
        reference: the template, as the general program has it.
        graph: its graph.
        regions: that of each of its uses, and the same as plain Thunder lays it out, where that is another one.
    """

    reference: TemplateReference
    graph: Part
    regions: tuple[tuple[Part, Part | None], ...]

    def fill(self, made: Sequence[Any]) -> TemplateReference:
        """Returns the template that these parts make."""
        uses = tuple(
            replace(
                use, instance=replace(use.instance, region=made[region], plain=None if plain is None else made[plain])
            )
            for use, (region, plain) in zip(self.reference.uses, self.regions, strict=True)
        )
        return replace(self.reference, graph=made[self.graph], uses=uses)


class GeneralTemplates:
    """Templates with places for numbers.

    Args:
        templates: those of a general program, by what stands for them. Each number in them is a position.
        values: what the numbers at these positions are made of.
    """

    __slots__ = ("_parts", "_places")

    def __init__(self, templates: Mapping[str, TemplateReference], values: Sequence[tuple[Expression, ...]]):
        self._parts = _Parts(values)
        self._places = {name: self._cut(reference) for name, reference in templates.items()}

    def fill(self, numbers: Sequence[int | float]) -> dict[str, TemplateReference]:
        """Returns the templates with these numbers, by their positions, in the places."""
        made = self._parts.make_all(numbers)
        return {name: places.fill(made) for name, places in self._places.items()}

    def _cut(self, reference: TemplateReference) -> _Places:
        regions = tuple(self._cut_instance(use.instance) for use in reference.uses)
        return _Places(reference, self._cut_graph(reference.graph), regions)

    def _cut_instance(self, instance: Instance) -> tuple[Part, Part | None]:
        return self._cut_graph(instance.region), None if instance.plain is None else self._cut_graph(instance.plain)

    def _cut_graph(self, graph: Graph) -> Part:
        parts = self._parts
        inputs, ops = [*map(self._cut_type, graph.inputs)], [*map(self._cut_op, graph.ops)]
        rest = parts.keep(graph.outputs), parts.keep(graph.sizes)
        return parts.make(Graph, parts.make(_list, *inputs), parts.make(_list, *ops), *rest)

    def _cut_op(self, op: Op) -> Part:
        parts = self._parts
        args = parts.make(_list, *map(self._cut_arg, op.args))
        outputs = parts.make(_list, *map(self._cut_type, op.outputs))
        kwargs = [parts.make(_list, parts.keep(name), self._cut_arg(arg)) for name, arg in op.kwargs]
        return parts.make(Op, parts.keep(op.name), args, outputs, parts.make(_list, *kwargs))

    def _cut_type(self, type_: ValueType | None) -> Part:
        parts = self._parts
        if not isinstance(type_, TensorType):
            return parts.keep(type_)
        sizes = [parts.take(size) if isinstance(size, int) else parts.keep(size) for size in type_.shape]
        return parts.make(TensorType, parts.keep(type_.dtype), parts.make(_list, *sizes), parts.keep(type_.device))

    def _cut_arg(self, arg: Arg) -> Part:
        parts = self._parts
        if isinstance(arg, tuple):
            return parts.make(_list, *map(self._cut_arg, arg))
        position = read_constant(arg) if isinstance(arg, Const) else None
        if not isinstance(arg, Const) or position is None:
            return parts.keep(arg)
        return parts.make(write_number, parts.keep(arg.kind), parts.take(int(position)))


class _Parts:
    """Parts, each of which is there once, and how those are made that vary.

    Args:
        values: what the number at each position is made of.
    """

    __slots__ = ("_known", "_made", "_numbers", "_steps", "_values", "_varying")

    def __init__(self, values: Sequence[tuple[Expression, ...]]):
        self._values = values
        self._known: dict[Hashable, Part] = {}
        self._made: list[Any] = []
        self._numbers: list[tuple[Part, int]] = []
        self._steps: list[tuple[Part, Make, tuple[Part, ...]]] = []
        self._varying: set[Part] = set()

    def keep(self, value: object) -> Part:
        """Returns the part that is this, whatever the sizes."""
        # What is equal may not be the same: 1 and 1.0, 0.0 and -0.0.
        return self._find((type(value), repr(value)), value)

    def take(self, position: int) -> Part:
        """Returns the part that is the number at a position."""
        match self._values[position]:
            case (int() | Float() as constant,):
                return self.keep(evaluate(constant, {}))
        identity = "number", position
        if identity not in self._known:
            self._numbers.append((self._find(identity, None), position))
            self._varying.add(self._known[identity])
        return self._known[identity]

    def make(self, make: Make, *of: Part) -> Part:
        """Returns the part that is made of others: now, or anew at other sizes."""
        identity = make, of
        if identity in self._known:
            return self._known[identity]
        if self._varying.isdisjoint(of):
            return self._find(identity, make(*(self._made[part] for part in of)))
        part = self._find(identity, None)
        self._steps.append((part, make, of))
        self._varying.add(part)
        return part

    def make_all(self, numbers: Sequence[int | float]) -> list[Any]:
        """Returns all parts as they are with these numbers, by their positions."""
        made = self._made.copy()
        for part, position in self._numbers:
            made[part] = numbers[position]
        for part, make, of in self._steps:
            made[part] = make(*[made[each] for each in of])
        return made

    def _find(self, identity: Hashable, value: Any) -> Part:
        """Returns a part that may be new."""
        part = self._known.setdefault(identity, len(self._made))
        if part == len(self._made):
            self._made.append(value)
        return part


def _list(*items: Any) -> tuple[Any, ...]:
    return items
