"""Graphs written anew, op by op, with a record of where the values of the old one went."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fusioncache.ir import Graph, Op, Ref, ValueType, map_arg, map_type


def rename_operands(op: Op, rename: Callable[[int], Ref]) -> Op:
    """Returns the op with each used value replaced by ``rename(index)``."""
    return Op(
        op.name,
        tuple(map_arg(arg, rename) for arg in op.args),
        tuple(map_type(type_, rename) for type_ in op.outputs),
        tuple((name, map_arg(arg, rename)) for name, arg in op.kwargs),
    )


def renumber(
    rename: Callable[[int], Ref], inputs: Iterable[ValueType], ops: Iterable[Op], outputs: Iterable[int], sizes: int = 0
) -> Graph:
    """Returns a graph of these parts of another one, with each value replaced by ``rename(index)``."""
    types = tuple(map_type(type_, rename) for type_ in inputs)
    moved = tuple(rename_operands(op, rename) for op in ops)
    return Graph(types, moved, tuple(rename(value).index for value in outputs), sizes)


class GraphWriter:
    """Writes a graph that starts with an old graph's inputs and, behind these, added ones.

    Attributes:
        types: the type of each value written so far; None for a symbolic size.
    """

    def __init__(self, old: Graph, added: tuple[ValueType, ...] = ()):
        before = len(old.inputs)
        self._renamed = {
            value: Ref(value if value < before else value + len(added)) for value in range(old.first_result)
        }
        self._sizes = old.sizes
        self._inputs = tuple(map_type(type_, self.new) for type_ in (*old.inputs, *added))
        self._ops: list[Op] = []
        self.types: list[ValueType | None] = [*self._inputs, *[None] * old.sizes]

    def new(self, old: int) -> Ref:
        """Returns where a value of the old graph is now."""
        return self._renamed[old]

    def rename(self, op: Op) -> Op:
        """Returns an op of the old graph on the values of the new one."""
        return rename_operands(op, self.new)

    def append(self, op: Op) -> int:
        """Writes an op on values of the new graph; returns the number of its first result."""
        first = len(self.types)
        self._ops.append(op)
        self.types.extend(op.outputs)
        return first

    def move(self, old: int, new: int, results: int = 1) -> None:
        """Notes that values of the old graph, from this one on, are these of the new one."""
        self._renamed.update({old + index: Ref(new + index) for index in range(results)})

    def copy(self, op: Op, first: int) -> None:
        """Writes an op of the old graph whose first result had this number."""
        self.move(first, self.append(self.rename(op)), len(op.outputs))

    def graph(self, outputs: Iterable[int]) -> Graph:
        """Returns what was written. ``outputs`` are values of the old graph."""
        return Graph(self._inputs, tuple(self._ops), tuple(self.new(value).index for value in outputs), self._sizes)
