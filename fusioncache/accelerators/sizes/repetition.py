"""Entries of a journal for a block that was copied: those of the block it was copied from, with other tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fusioncache.accelerators.sizes.journal import Entry, Look, OperationCall, Reading, TensorName
from fusioncache.accelerators.sizes.sizes import Expression, Number, Operation
from fusioncache.accelerators.sizes.values import exchange
from fusioncache.ir.errors import Declined, Scope


class Repetition:
    """One block that was copied.

    Args:
        names: of tensors of the first block, each with the name of the tensor in its place.
        shift: how many names the trace counted from the first block to this one.
        numbers: how many numbers operations have returned so far.
        readings: what was read for this block.
    """

    def __init__(self, names: Mapping[str, str], shift: int, numbers: int, readings: Sequence[Reading]) -> None:
        self.numbers = numbers
        self._names = names
        self._shift = shift
        self._readings = list(readings)
        self._positions: dict[int, int] = {}

    def repeat(self, entries: Sequence[Entry]) -> list[Entry]:
        """Returns the entries of this block. No variable is named again.

        Raises:
            Declined: if something else was read or returned, or a container cannot be exchanged.
        """
        found: list[Entry] = []
        for entry in entries:
            if isinstance(entry, Reading):
                found.append(self._read(entry))
            elif isinstance(entry, OperationCall):
                found.append(self._call(entry))
            elif isinstance(entry, Look):
                left, right = map(self._renumber, (entry.left, entry.right))
                found.append(replace(entry, left=left, right=right))
        if self._readings:
            raise Declined("more was read", Scope.STRUCTURE)
        return found

    def _read(self, reading: Reading) -> Reading:
        new = self._readings.pop(0) if self._readings else None
        if new is None or new.names != self._move(reading.names):
            raise Declined("something else was read", Scope.STRUCTURE)
        if self._names.get(reading.proxy.name) != new.proxy.name:
            raise Declined("something was read at another place", Scope.STRUCTURE)
        return new

    def _call(self, call: OperationCall) -> OperationCall:
        given = {each.name for each in _list_tensors((call.args, call.kwargs))}
        if any(each.name not in self._names and each.name not in given for each in _list_tensors(call.result)):
            raise Declined("the result of an operation is unknown", Scope.STRUCTURE)
        args, kwargs = (exchange(each, self._exchange) for each in (call.args, call.kwargs))
        result = exchange(call.result, self._return)
        return replace(call, args=args, kwargs=kwargs, result=result, names=self._move(call.names))

    def _move(self, names: tuple[int, int]) -> tuple[int, int]:
        return names[0] + self._shift, names[1] + self._shift

    def _return(self, leaf: Any) -> Any:
        if not isinstance(leaf, Number):
            return self._exchange(leaf)
        self.numbers += 1
        self._positions[leaf.position] = self.numbers
        return replace(leaf, position=self.numbers)

    def _exchange(self, leaf: Any) -> Any:
        if isinstance(leaf, TensorName):
            return TensorName(self._names.get(leaf.name, leaf.name))
        return self._renumber(leaf) if isinstance(leaf, Number | Operation) else leaf

    def _renumber(self, expression: Expression) -> Expression:
        if isinstance(expression, Number):
            return replace(expression, position=self._positions.get(expression.position, expression.position))
        if isinstance(expression, Operation):
            return replace(expression, left=self._renumber(expression.left), right=self._renumber(expression.right))
        return expression


def _list_tensors(value: Any) -> list[TensorName]:
    found: list[TensorName] = []

    def note(leaf: Any) -> Any:
        if isinstance(leaf, TensorName):
            found.append(leaf)
        return leaf

    exchange(value, note)
    return found


def find_entries(entries: Sequence[Entry], names: tuple[int, int]) -> Sequence[Entry]:
    """Returns the entries that were added between two counts of names."""
    counted = [
        position
        for position, entry in enumerate(entries)
        if isinstance(entry, OperationCall | Reading) and names[0] <= entry.names[0] and entry.names[1] <= names[1]
    ]
    return entries[counted[0] : counted[-1] + 1] if counted else ()
