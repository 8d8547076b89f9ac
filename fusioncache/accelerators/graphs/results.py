"""How what a captured program returns comes about after a replay: from arguments, from copies, from kept memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fusioncache.accelerators.graphs.buffers import Aliases, Copier, count_elements, find_base, find_memory
from fusioncache.ir.errors import Declined, Scope

_CONSTANTS = (type(None), bool, int, float, complex, str)


@dataclass(frozen=True, slots=True)
class _View:
    """A result that lies in the memory of an argument.

    Attributes:
        position: of the argument.
        shape: of the result.
        strides: of it.
        offset: elements from the first one of the argument.
        is_attached: whether it is a view to autograd, which sees writes into the one in the other; else it is detached.
        is_whole: whether it lies as the argument does.
    """

    position: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    is_attached: bool
    is_whole: bool

    def take(self, argument: Any) -> Any:
        """Returns the result of a call that has this argument."""
        source = argument if self.is_attached else argument.detach()
        if self.is_whole and not self.is_attached:
            return source
        return source.as_strided(self.shape, self.strides, argument.storage_offset() + self.offset)


class Arguments:
    """The arguments of a captured program, as its results are traced back to them.

    Args:
        tensors: each with its position. They must live as long as this.
    """

    def __init__(self, tensors: Iterable[tuple[int, Any]]):
        self._positions: dict[int, int] = {}
        self._by_memory: dict[int, list[tuple[int, Any]]] = {}
        for position, tensor in tensors:
            self._positions.setdefault(id(tensor), position)
            if tensor.numel():
                self._by_memory.setdefault(find_memory(tensor), []).append((position, tensor))

    def find_origin(self, result: Any) -> int | _View | None:
        """Returns the position of the argument that a result is, or how it is a view of one; None if it is neither."""
        position = self._positions.get(id(result))
        if position is not None:
            return position
        found = self._by_memory.get(find_memory(result)) if result.numel() else None
        if found is None:
            return None
        # Arguments may share memory, and autograd knows of one of them only that the result is a view of it.
        views = [each for each in found if find_base(each[1]) is find_base(result)]
        alike = [each for each in views or found if each[1].dtype == result.dtype]
        if not alike:
            raise Declined("a result that is a view of an argument in another dtype", Scope.CAPTURE)
        position, argument = next((each for each in alike if _covers(each[1], result)), alike[0])
        offset = result.storage_offset() - argument.storage_offset()
        layout = tuple(result.shape), tuple(result.stride())
        is_whole = offset == 0 and layout == (tuple(argument.shape), tuple(argument.stride()))
        return _View(position, *layout, offset, bool(views), is_whole)


def _covers(argument: Any, result: Any) -> bool:
    """True if a result lies where an argument does."""
    first, start = argument.storage_offset(), result.storage_offset()
    end = start + count_elements(tuple(result.shape), result.stride())
    return first <= start and end <= first + count_elements(tuple(argument.shape), argument.stride())


class Results:
    """Gives the results of a captured program after each replay.

    Tensors that a graph computed are copied when they leave it, as the next replay overwrites them, or they are lent:
    see ``loans.py``. Those that are kept for a backward stay where they are.

    Args:
        leaves: what the program returned while it was captured.
        arguments: that it had.
        kept: positions among the leaves of tensors that stay in the graph's memory.
        device: where the tensors must be.
        keeper: lives as long as lent memory is in use.

    Attributes:
        copier: has what the graph computed.

    Raises:
        Declined: if there is something among the leaves that cannot be given again.
    """

    __slots__ = ("_computed", "_from_arguments", "_template", "_views", "copier")

    def __init__(
        self,
        leaves: Sequence[Any],
        arguments: Arguments,
        kept: Collection[int],
        device: Any,
        keeper: object = None,
    ):
        aliases = Aliases(keeper)
        self._template: list[Any] = [None] * len(leaves)
        self._from_arguments: list[tuple[int, int]] = []
        self._views: list[tuple[_View, list[int]]] = []
        views: dict[int, list[int]] = {}
        leaving: dict[int, tuple[Any, list[int]]] = {}
        for leaf, value in enumerate(leaves):
            if isinstance(value, _CONSTANTS):
                self._template[leaf] = value
                continue
            origin = arguments.find_origin(check_tensor(value, "returns"))
            if isinstance(origin, int):
                self._from_arguments.append((leaf, origin))
            elif origin is not None:
                if id(value) not in views:  # the same object is given in all of its places
                    views[id(value)] = []
                    self._views.append((origin, views[id(value)]))
                views[id(value)].append(leaf)
            elif value.device != device:
                raise Declined("results on several devices", Scope.CAPTURE)
            elif leaf in kept:
                self._template[leaf] = aliases.make(value)
            else:
                leaving.setdefault(id(value), (value, []))[1].append(leaf)
        self.copier = Copier([tensor for tensor, _ in leaving.values()], aliases)
        self._computed = [(leaf, index) for index, (_, where) in enumerate(leaving.values()) for leaf in where]

    def list_kept(self, leaves: range) -> list[Any]:
        """Returns those of the leaves that are the same in each call, with None in the places of others."""
        return self._template[leaves.start : leaves.stop]

    def give(self, arguments: Sequence[Any], computed: Callable[[], Sequence[Any]] | None = None) -> list[Any]:
        """Returns the leaves of a call, right after its replay.

        Args:
            arguments: of the call.
            computed: returns what the graph computed, in the order of the copier, which else makes copies.
        """
        leaves = self._template.copy()
        for leaf, position in self._from_arguments:
            leaves[leaf] = arguments[position]
        for view, places in self._views:
            tensor = view.take(arguments[view.position])
            for leaf in places:
                leaves[leaf] = tensor
        if self._computed:
            tensors = (computed or self.copier.copy)()
            for leaf, index in self._computed:
                leaves[leaf] = tensors[index]
        return leaves


def check_tensor(value: Any, verb: str) -> Any:
    """Returns a value that is a tensor as any other.

    Raises:
        Declined: if it is something else. The reason begins with the verb.
    """
    import torch

    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        raise Declined(f"it {verb} a value of type {type(value).__qualname__}", Scope.CAPTURE)
    if value.layout is not torch.strided or value.is_quantized or value.is_conj() or value.is_neg():
        raise Declined(f"it {verb} a sparse, quantized, conjugated or negated tensor", Scope.CAPTURE)
    return value
