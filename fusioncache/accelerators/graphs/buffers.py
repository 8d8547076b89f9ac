"""The tensors that enter and leave a captured program.

Arguments with fixed addresses are read in place; others are copied into memory at a fixed address. Results are
arguments, views of arguments, or tensors that the graph computed. Computed tensors are returned as copies, as the next
replay overwrites the memory, or as the memory itself, if it is lent. Memory that a captured program leaves in the pool
is found by its address: to the allocator it is free, so that other captures may use it at other times; ``memory.py``
decides which capture may use it when.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import ref

import torch

from fusioncache.ir.errors import Declined, Scope
from fusioncache.ir.template import count_elements
from fusioncache.template.strides import strided_of

MOST_MOVES = 1
"""How many moves a parameter may make and still count as fixed: a model is moved or loaded once, and then stays."""


class Addresses:
    """The addresses of the arguments of one kind of call.

    That an argument has a fixed address is a guess, so a capture compares the addresses in each call. Parameters count
    as fixed. So does an argument that is the same object in each call, such as a buffer of the model. An equal address
    proves little, as the memory of a batch is soon reused for the next one.

    Args:
        parameters: whether each argument is a parameter of the model.
    """

    def __init__(self, parameters: Sequence[bool]):
        self._parameters = tuple(parameters)
        self._moves = [0] * len(parameters)
        self._last: list[tuple[ref[Any], int]] | None = None

    def observe(self, tensors: Sequence[Any]) -> None:
        """Records the addresses of the arguments of a call."""
        if self._last is not None:
            pairs = zip(self._last, tensors, self._parameters, strict=True)
            for position, ((last, address), tensor, owned) in enumerate(pairs):
                is_another = not owned and last() is not tensor
                self._moves[position] += is_another or address != tensor.data_ptr()
        self._last = [(ref(tensor), tensor.data_ptr()) for tensor in tensors]

    def list_fixed(self) -> tuple[int, ...]:
        """Returns the positions of the arguments with fixed addresses."""
        pairs = zip(self._moves, self._parameters, strict=True)
        return tuple(place for place, (moves, owned) in enumerate(pairs) if moves <= (MOST_MOVES if owned else 0))


class Aliases:
    """Makes aliases of tensors, which do not own the memory. Aliases of tensors that share memory share it, too.

    Args:
        keeper: an object to keep alive while one of the aliases, a view of it, or its memory is in use. None if
            another object keeps the memory.
    """

    def __init__(self, keeper: object = None) -> None:
        self._keeper = keeper
        self._storages: dict[int, Any] = {}

    def make(self, tensor: Any) -> Any:
        """Returns an alias of a tensor, which may be freed afterwards."""
        alias = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        if tensor.numel() == 0:
            return alias.new_empty_strided(tensor.shape, tensor.stride())
        return alias.set_(self._find_storage(tensor), tensor.storage_offset(), tensor.shape, tensor.stride())

    def make_bytes(self, tensor: Any) -> Any:
        """Returns an alias of the whole storage of a tensor, as bytes."""
        storage = self._find_storage(tensor)
        return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage, 0, (storage.nbytes(),), (1,))

    def _find_storage(self, tensor: Any) -> Any:
        own = tensor.untyped_storage()
        address = own.data_ptr()
        found = self._storages.get(address)
        if found is None:
            found = torch._C._construct_storage_from_data_pointer(address, tensor.device, own.nbytes())
            if self._keeper is not None:
                found.keeper = self._keeper
                found._share_cuda_ = partial(_share_copy, address, tensor.device, own.nbytes())
            self._storages[address] = found
        return found


def _share_copy(address: int, device: Any, size: int, *args: Any) -> Any:
    """Sends another process a copy of memory that has a keeper: this process cannot count references in that one."""
    return torch._C._construct_storage_from_data_pointer(address, device, size).clone()._share_cuda_(*args)


_ALIGNMENT = 16
"""Bytes. Kernels are chosen by an address modulo this number, so a buffer's address has the argument's remainder."""


@dataclass(frozen=True, slots=True)
class StaticBuffer:
    """A tensor at a fixed address, with the strides of the arguments that are copied into it.

    Attributes:
        tensor: the tensor that a captured program reads.
        compact: the same memory with size 1 in each dimension of stride 0, along which all elements are the same.
    """

    tensor: Any
    compact: Any

    def fill(self, argument: Any) -> None:
        """Copies an argument of the same shape and strides into the buffer."""
        if self.compact is self.tensor:
            self.tensor.copy_(argument)
        else:
            self.compact.copy_(argument.as_strided(self.compact.shape, argument.stride()))


def make_buffer(argument: Any) -> StaticBuffer:
    """Returns a buffer for arguments with the layout and alignment of this one.

    Raises:
        Declined: if elements of it overlap in memory other than by a stride of 0.
    """
    shape, strides = tuple(argument.shape), argument.stride()
    compact_shape = tuple(1 if stride == 0 and size > 1 else size for size, stride in zip(shape, strides, strict=True))
    if overlaps(compact_shape, strides):
        raise Declined("an argument whose elements overlap in memory", Scope.CAPTURE)
    itemsize = argument.element_size()
    offset = argument.data_ptr() % _ALIGNMENT // itemsize
    memory = torch.empty(offset + count_elements(compact_shape, strides), dtype=argument.dtype, device=argument.device)
    tensor = memory.as_strided(shape, strides, offset)
    return StaticBuffer(tensor, tensor if shape == compact_shape else memory.as_strided(compact_shape, strides, offset))


def overlaps(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """True if two elements of a tensor may share a memory location. Also true where that is hard to decide."""
    if 0 in shape:
        return False
    reach = 0
    for stride, size in sorted((stride, size) for size, stride in zip(shape, strides, strict=True) if size > 1):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


@dataclass(frozen=True, slots=True)
class _Root:
    """A base tensor in memory that several tensors share, and its views, as autograd sees them.

    Attributes:
        alias: has the layout and offset that the copied tensor will have in its memory.
        is_detached: whether it is a detached alias of the first base in the memory, so that autograd sees writes into
            one in the other. If not, autograd knows nothing of the shared memory.
        views: the tensors to return: the index of each among the copies, and its alias, or None for the base itself.
    """

    alias: Any
    is_detached: bool
    views: list[tuple[int, Any]]

    def make(self, storage: Any, first: Any) -> Any:
        """Returns the tensor in a copy of the memory, given the first tensor that was made there."""
        if not self.is_detached or first.dtype != self.alias.dtype:
            return _place(storage, self.alias)
        detached = first.detach()
        return detached if _layout_of(first) == _layout_of(self.alias) else _take(detached, self.alias)


@dataclass(frozen=True, slots=True)
class _Memory:
    """Memory that is copied as a whole.

    Attributes:
        content: its bytes.
        roots: the base tensors in it.
    """

    content: Any
    roots: tuple[_Root, ...]

    def copy_into(self, copies: list[Any]) -> None:
        """Copies the memory, and puts the returned tensors in the copy at their indices."""
        storage = self.content.clone().untyped_storage()
        first: Any = None
        for root in self.roots:
            tensor = root.make(storage, first)
            first = tensor if first is None else first
            for index, alias in root.views:
                if alias is None:
                    copies[index] = tensor
                else:
                    copies[index] = _take(tensor, alias) if alias.dtype == tensor.dtype else _place(storage, alias)


class Copier:
    """Copies tensors out of the memory of a graph, or lends them. Copies of tensors that share memory share it as well.

    Args:
        tensors: in the memory of the graph.
        aliases: makes tensors in that memory that do not own it.
    """

    __slots__ = ("_aliases", "_dense", "_empty", "_shared")

    def __init__(self, tensors: Sequence[Any], aliases: Aliases):
        self._aliases = [aliases.make(tensor) for tensor in tensors]
        self._empty = [index for index, alias in enumerate(self._aliases) if not alias.numel()]
        self._dense: dict[Any, tuple[list[int], list[Any]]] = {}
        owners = Counter(find_memory(tensor) for tensor in tensors)
        shared: dict[int, list[int]] = {}
        for index, tensor in enumerate(tensors):
            alias, memory = self._aliases[index], find_memory(tensor)
            if tensor.numel() == 0 or (owners[memory] == 1 and strided_of(tensor).is_dense):
                indices, sources = self._dense.setdefault(tensor.dtype, ([], []))
                indices.append(index)
                sources.append(alias)
                continue
            shared.setdefault(memory, []).append(index)
        self._shared = [
            _Memory(aliases.make_bytes(tensors[indices[0]]), tuple(self._find_roots(tensors, indices, aliases)))
            for indices in shared.values()
        ]

    def _find_roots(self, tensors: Sequence[Any], indices: Sequence[int], aliases: Aliases) -> Iterator[_Root]:
        """Yields the base tensors in one memory. A tensor that is alone there counts as one: its base is unused."""
        groups: dict[int, tuple[Any, list[int]]] = {}
        for index in indices:
            base = find_base(tensors[index]) if len(indices) > 1 else tensors[index]
            groups.setdefault(id(base), (base, []))[1].append(index)
        first: Any = None
        for base, members in groups.values():
            views = [(index, None if tensors[index] is base else self._aliases[index]) for index in members]
            yield _Root(aliases.make(base), first is not None and _share_version(first, base), views)
            first = base if first is None else first

    @property
    def count(self) -> int:
        """The number of tensors that it copies."""
        return len(self._aliases)

    def copy(self) -> list[Any]:
        """Returns a copy of each tensor, in order, with the same strides."""
        copies: list[Any] = [None] * len(self._aliases)
        for indices, sources in self._dense.values():
            if len(sources) == 1:  # the foreach kernel would give a small tensor to one thread block
                fresh = [sources[0].clone()]
            else:
                fresh = [torch.empty_like(source) for source in sources]
                torch._foreach_copy_(fresh, sources)
            for index, tensor in zip(indices, fresh, strict=True):
                copies[index] = tensor
        for memory in self._shared:
            memory.copy_into(copies)
        return copies

    def lend(self) -> list[Any]:
        """Returns each tensor in place, in order, as a detached alias."""
        lent = list(map(torch.Tensor.detach, self._aliases))
        for index in self._empty:
            lent[index] = self._aliases[index].clone()
        return lent

    def list_storages(self) -> dict[int, Any]:
        """Returns the storages that are lent, by their addresses."""
        return {find_memory(alias): alias.untyped_storage() for alias in self._aliases if alias.numel()}


def _layout_of(tensor: Any) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.storage_offset()


def _place(storage: Any, alias: Any) -> Any:
    """Returns a new tensor in a storage, with the layout and offset of an alias in another one."""
    own = torch.empty(0, dtype=alias.dtype, device=alias.device)
    return own.set_(storage, alias.storage_offset(), alias.shape, alias.stride())


def _take(tensor: Any, alias: Any) -> Any:
    """Returns a view with the layout and offset of an alias."""
    return tensor.as_strided(alias.shape, alias.stride(), alias.storage_offset())


def _share_version(one: Any, other: Any) -> bool:
    """True if two tensors share a version counter. It is incremented: no caller has the tensors yet."""
    from torch.autograd.graph import increment_version

    before = other._version
    increment_version(one)
    return bool(other._version != before)


def find_base(tensor: Any) -> Any:
    """Returns the tensor that a tensor is a view of, as autograd sees it; the tensor itself if it is no view."""
    return tensor if tensor._base is None else tensor._base


def find_memory(tensor: Any) -> int:
    """Returns the address of a tensor's storage."""
    return tensor.untyped_storage().data_ptr()


_CONSTANTS = (type(None), bool, int, float, complex, str)


@dataclass(frozen=True, slots=True)
class _View:
    """A result in the memory of an argument.

    Attributes:
        position: of the argument.
        shape: of the result.
        strides: of the result.
        offset: elements from the first one of the argument.
        is_attached: whether autograd knows the view, and sees writes into one in the other; else it is detached.
        is_whole: whether it has the layout and offset of the argument.
    """

    position: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    is_attached: bool
    is_whole: bool

    def take(self, argument: Any) -> Any:
        """Returns the result of a call with this argument."""
        source = argument if self.is_attached else argument.detach()
        if self.is_whole and not self.is_attached:
            return source
        return source.as_strided(self.shape, self.strides, argument.storage_offset() + self.offset)


class Arguments:
    """The arguments of a captured program, used to find out which results are arguments or views of them.

    Args:
        tensors: each with its position. They must live as long as this object.
    """

    def __init__(self, tensors: Iterable[tuple[int, Any]]):
        self._positions: dict[int, int] = {}
        self._by_memory: dict[int, list[tuple[int, Any]]] = {}
        for position, tensor in tensors:
            self._positions.setdefault(id(tensor), position)
            if tensor.numel():
                self._by_memory.setdefault(find_memory(tensor), []).append((position, tensor))

    def find_origin(self, result: Any) -> int | _View | None:
        """Returns the position of the argument that a result is, or a ``_View`` of one; None if neither."""
        position = self._positions.get(id(result))
        if position is not None:
            return position
        found = self._by_memory.get(find_memory(result)) if result.numel() else None
        if found is None:
            return None
        # Arguments may share memory, but to autograd the result is a view of one of them only.
        views = [each for each in found if find_base(each[1]) is find_base(result)]
        alike = [each for each in views or found if each[1].dtype == result.dtype]
        if not alike:
            raise Declined("a result that is a view of an argument in another dtype", Scope.CAPTURE)
        position, argument = next((each for each in alike if _covers(each[1], result)), alike[0])
        offset = result.storage_offset() - argument.storage_offset()
        is_whole = _layout_of(result) == _layout_of(argument)
        return _View(position, tuple(result.shape), result.stride(), offset, bool(views), is_whole)


def _covers(argument: Any, result: Any) -> bool:
    """True if a result lies within the memory range of an argument."""
    first, start = argument.storage_offset(), result.storage_offset()
    end = start + count_elements(tuple(result.shape), result.stride())
    return first <= start and end <= first + count_elements(tuple(argument.shape), argument.stride())


class Results:
    """Returns the results of a captured program after each replay.

    Tensors that the graph computed are returned as copies, as the next replay overwrites them, or they are lent:
    see ``memory.py``. Tensors saved for a backward stay in place.

    Args:
        leaves: the values that the program returned while it was captured.
        arguments: of the captured call.
        kept: positions among the leaves of tensors that stay in the graph's memory.
        device: on which the computed tensors must be.
        keeper: an object to keep alive while lent memory is in use.

    Attributes:
        copier: of the tensors that the graph computed.

    Raises:
        Declined: if a leaf cannot be returned again.
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
        views: dict[int, tuple[_View, list[int]]] = {}
        leaving: dict[int, tuple[Any, list[int]]] = {}
        for leaf, value in enumerate(leaves):
            if isinstance(value, _CONSTANTS):
                self._template[leaf] = value
                continue
            origin = arguments.find_origin(check_tensor(value, "returns"))
            if isinstance(origin, int):
                self._from_arguments.append((leaf, origin))
            elif origin is not None:
                views.setdefault(id(value), (origin, []))[1].append(leaf)  # the same object in all of its places
            elif value.device != device:
                raise Declined("results on several devices", Scope.CAPTURE)
            elif leaf in kept:
                self._template[leaf] = aliases.make(value)
            else:
                leaving.setdefault(id(value), (value, []))[1].append(leaf)
        self._views = tuple(views.values())
        self.copier = Copier([tensor for tensor, _ in leaving.values()], aliases)
        self._computed = [(leaf, index) for index, (_, where) in enumerate(leaving.values()) for leaf in where]

    def list_constant(self, leaves: range) -> list[Any]:
        """Returns the leaves that are the same in each call, with None in the places of others."""
        return self._template[leaves.start : leaves.stop]

    def give(self, arguments: Sequence[Any], computed: Callable[[], Sequence[Any]] | None = None) -> list[Any]:
        """Returns the leaves of a call, right after its replay.

        Args:
            arguments: of the call.
            computed: returns the computed tensors in the order of the copier; None to copy them.
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
    """Returns a value that is an ordinary tensor.

    Raises:
        Declined: if it is not. The reason contains the verb.
    """
    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        raise Declined(f"it {verb} a value of type {type(value).__qualname__}", Scope.CAPTURE)
    if value.layout is not torch.strided or value.is_quantized or value.is_conj() or value.is_neg():
        raise Declined(f"it {verb} a sparse, quantized, conjugated or negated tensor", Scope.CAPTURE)
    return value
