"""Copies a block: repeats the recording of a similar block, with the result that interpreting it would have.

Two modules are similar if code cannot distinguish them. This is tested once: a second block is interpreted as well, and
its recording has to be the one that the first block's predicts.
"""

from __future__ import annotations

import math
import re
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MethodType
from typing import Any

import torch

from fusioncache.accelerators.layers.recording import BlockRecording, Copies, State, find_owner, find_value
from fusioncache.ir.errors import Declined, Scope
from fusioncache.thunder_adapter.accelerator_api import interpreter
from fusioncache.thunder_adapter.api import NumberProxy, Proxy, TensorProxy, tree_flatten, tree_map
from fusioncache.thunder_adapter.hooks import has_type, name_instruction

_PLAIN = (int, float, complex, bool, str, bytes, type(None), type(Ellipsis))
_DIFFERING = (int, float, str)


@dataclass(slots=True)
class Correspondence:
    """The correspondence between the objects of two modules.

    Attributes:
        partners: objects of the second module, by the address of the corresponding object of the first.
        differing: the plain attributes that differ, as the address of a module in the first and the attribute's name.
    """

    partners: dict[int, Any] = field(default_factory=dict)
    differing: set[tuple[int, str]] = field(default_factory=set)
    _taken: set[int] = field(default_factory=set)

    def pair(self, one: Any, other: Any) -> bool:
        """Records that two objects correspond; returns whether that was already recorded.

        Raises:
            Declined: if one of them corresponds to another object, or both are the same object.
        """
        if id(one) in self.partners:
            if self.partners[id(one)] is not other:
                raise Declined("one has an object in two places where the other has two", Scope.BLOCK)
            return True
        if one is other or id(other) in self._taken:
            raise Declined("they share a parameter, a module or a container", Scope.BLOCK)
        self.partners[id(one)] = other
        self._taken.add(id(other))
        return False


def compare(one: Any, other: Any) -> Correspondence:
    """Returns the correspondence of two modules that differ only in parameters' values and plain attributes.

    Raises:
        Declined: if they differ otherwise, or contain something that is not supported.
    """
    correspondence = Correspondence()
    _compare_modules(one, other, correspondence)
    return correspondence


def _compare_modules(one: Any, other: Any, correspondence: Correspondence) -> None:
    if type(one) is not type(other):
        raise Declined(f"a {type(one).__name__} is no {type(other).__name__}", Scope.BLOCK)
    if any(vars(base).get("__slots__") for base in type(one).__mro__):
        raise Declined(f"{type(one).__name__} has slots", Scope.BLOCK)
    if correspondence.pair(one, other):
        return
    correspondence.pair(vars(one), vars(other))
    _compare_keys(vars(one), vars(other))
    for name, value in vars(one).items():
        theirs = vars(other)[name]
        if type(value) is type(theirs) and has_type(value, _DIFFERING) and not _equal(value, theirs):
            correspondence.differing.add((id(one), name))
        else:
            _compare_values(value, theirs, correspondence, name)


def _compare_values(one: Any, other: Any, correspondence: Correspondence, name: str) -> None:
    if isinstance(one, torch.nn.Module):
        _compare_modules(one, other, correspondence)
    elif isinstance(one, torch.Tensor):
        _compare_tensors(one, other, correspondence)
    elif type(one) is not type(other):
        raise Declined(f"{name} is of another type", Scope.BLOCK)
    elif has_type(one, (*_PLAIN, torch.dtype, torch.device, torch.Size)):
        if not _equal(one, other):
            raise Declined(f"{name} differs", Scope.BLOCK)
    elif has_type(one, (dict, OrderedDict)):
        if not correspondence.pair(one, other):
            _compare_keys(one, other)
            _compare_all(one.values(), other.values(), correspondence, name)
    elif has_type(one, (list, tuple)):
        if type(one) is tuple or not correspondence.pair(one, other):
            _compare_all(one, other, correspondence, name)
    elif has_type(one, (set, frozenset)) and not one and not other:
        pass
    elif one is not other or isinstance(one, MethodType):  # a shared bound method belongs to at most one of them
        raise Declined(f"{name} is a {type(one).__name__} of its own", Scope.BLOCK)


def _compare_all(ones: Collection[Any], others: Collection[Any], correspondence: Correspondence, name: str) -> None:
    if len(ones) != len(others):
        raise Declined(f"{name} has another length", Scope.BLOCK)
    for one, other in zip(ones, others, strict=True):
        _compare_values(one, other, correspondence, name)


def _compare_keys(one: dict[Any, Any], other: dict[Any, Any]) -> None:
    keys = [*one, *other]
    if list(one) != list(other) or any(type(key) is not str for key in keys):
        raise Declined(
            "they have other attributes, parameters, buffers, modules or hooks, or in another order", Scope.BLOCK
        )


def _compare_tensors(one: Any, other: Any, correspondence: Correspondence) -> None:
    if type(one) is not type(other) or type(one) not in (torch.nn.Parameter, torch.Tensor):
        raise Declined(f"a {type(one).__name__} is no {type(other).__name__}, or of no plain type", Scope.BLOCK)
    if _describe(one) != _describe(other):
        raise Declined("a parameter or a buffer has another shape, type, device or gradient", Scope.BLOCK)
    if vars(one) or vars(other):
        raise Declined("a parameter or a buffer has attributes of its own", Scope.BLOCK)
    correspondence.pair(one, other)


def _describe(tensor: Any) -> tuple[Any, ...]:
    shape = tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
    kind = type(tensor), tensor.dtype, tensor.device, tensor.layout, tensor.requires_grad, tensor.is_leaf
    if tensor.is_leaf and tensor.grad is not None:
        return *shape, *kind, _describe(tensor.grad)
    return *shape, *kind


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, float) and math.copysign(1, one) != math.copysign(1, other):
        return False  # also a NaN and the negative one, for which ``repr`` returns the same
    return one is other or repr(one) == repr(other)


class Conflict(BaseException):
    """Raised if a block turns out to need interpretation after it was copied.

    It is not an ``Exception``, because Thunder's interpreter would pass that to the model's code.
    """


def find_reads(template: BlockRecording, module: Any, correspondence: Correspondence) -> list[Any]:
    """Returns the values of another block at the places that were read in the first.

    Raises:
        Declined: if a plain attribute that was looked at differs, or another value does not correspond.
    """
    found = []
    for position, read in enumerate(template.reads):
        value = find_value(read.origin, template.root, module)
        owner = find_owner(read.origin, template.root, template.module)
        if owner in correspondence.differing:
            if position in template.touched:
                raise Declined(f"{owner[1]} differs, and is looked at", Scope.BLOCK)
        elif id(read.value) in correspondence.partners:
            if correspondence.partners[id(read.value)] is not value:
                raise Declined("a parameter is at another place", Scope.BLOCK)
        elif type(value) is not type(read.value) or repr(value) != repr(read.value):
            raise Declined("a value differs", Scope.BLOCK)
        found.append(value)
    return found


class BlockReplay:
    """The state of copying one block."""

    def __init__(self, template: BlockRecording, root: Any, args: tuple[Any, ...], context: Any) -> None:
        """Takes the recording of the first block, and the provenance record and the arguments of this one."""
        others = {id(template.root): root}
        self._proxies: dict[str, Any] = {}
        self._wrappers = {id(old): new for old, new in zip(template.args, args, strict=True)}
        for old, new in zip(list_wrappers(template.args), list_wrappers(args), strict=True):
            others[id(old.provenance)] = new.provenance
            if is_proxy(old.value):
                self._proxies[old.value.name] = new.value
        self._copies = Copies(others)
        self._template, self._context = template, context
        self._trace = context.computation_trace

    def write(self, values: list[Any]) -> Any:
        """Changes the trace as interpreting the block would, and returns the block's result in a wrapper.

        Raises:
            Conflict: if the trace differs from what the recording predicts.
        """
        template, before = self._template, State.of(self._context)
        pending = list(zip(template.reads, values, strict=True))[::-1]
        for position, symbol in enumerate(template.symbols):
            while pending and pending[-1][0].symbols <= position:
                self._read(*pending.pop(), before)
            self._call(symbol)
        while pending:
            self._read(*pending.pop(), before)
        if before.until(State.of(self._context)) != template.counts:
            raise Conflict("another number of names, guards or symbols")
        self._trace.set_current_source_location(*template.source)
        return self._wrap(template.result)

    def summarize(self) -> tuple[tuple[int, int], Mapping[str, str], int]:
        """Returns the arguments of ``Observer.see_copied`` for this block."""
        assert self._template.counts is not None
        start, count = self._template.start.names, self._template.counts.names
        names = {old: new.name for old, new in self._proxies.items()}
        return (start, start + count), names, self._trace.name_ctr - start - count

    def _read(self, read: Any, value: Any, before: State) -> None:
        if self._trace.name_ctr - before.names != read.names:
            raise Conflict("another number of names")
        wrapper = interpreter.WrappedValue(value, provenance=self._copies.copy(read.origin))
        has_proxy = wrapper.original_value is not wrapper.nothing  # a tensor gets its proxy when it is wrapped
        proxy = wrapper.value if has_proxy else self._context.proxify(wrapper)
        if type(proxy) is not type(read.proxy) or not isinstance(proxy, Proxy):
            raise Conflict("another proxy")
        self._proxies[read.proxy.name] = proxy

    def _call(self, symbol: Any) -> None:
        self._trace.set_current_source_location(symbol.source_filename, symbol.source_positions)
        args, kwargs = tree_map(self._replace, (symbol.args, symbol.kwargs))
        self._match(symbol.output, symbol.sym(*args, **kwargs))
        if self._trace.bound_symbols[-1].sym is not symbol.sym:
            raise Conflict("another symbol")

    def _replace(self, value: Any) -> Any:
        return self._proxies.get(value.name, value) if isinstance(value, Proxy) else value

    def _match(self, old: Any, new: Any) -> None:
        (olds, old_spec), (news, new_spec) = tree_flatten(old), tree_flatten(new)
        if old_spec != new_spec:
            raise Conflict("another structure")
        for one, other in zip(olds, news, strict=True):
            if describe_value(one) != describe_value(other):
                raise Conflict("another shape or type")
            if isinstance(one, Proxy):
                known = self._proxies.setdefault(one.name, other)
                if known is not other and known.name != other.name:
                    raise Conflict("another result")

    def _wrap(self, wrapper: Any) -> Any:
        if id(wrapper) in self._wrappers:
            return self._wrappers[id(wrapper)]
        origin = self._copies.copy(wrapper.provenance)
        if type(wrapper.value) is not tuple:
            return interpreter.WrappedValue(self._replace(wrapper.value), provenance=origin)
        items = [self._wrap(item) for item in wrapper.item_wrappers]
        new = interpreter.WrappedValue(tuple(item.value for item in items), provenance=origin)
        new.item_wrappers = items
        new.has_item_tracking = wrapper.has_item_tracking
        return new


def is_proxy(value: Any) -> bool:
    """True if a value is a proxy: it represents a value that is unknown until the program runs."""
    return isinstance(value, Proxy)


def list_wrappers(wrappers: Iterable[Any]) -> Iterator[Any]:
    """Yields wrappers, including those of tuple items.

    Raises:
        Declined: if a tuple item has no wrapper because it was not looked at.
    """
    for wrapper in wrappers:
        yield wrapper
        if type(wrapper.value) is tuple:
            if any(each is None for each in wrapper.item_wrappers):
                raise Declined("a tuple has items that were not looked at", Scope.BLOCK)
            yield from list_wrappers(wrapper.item_wrappers)


def describe_value(value: Any, *, has_gradient: bool | None = None) -> tuple[Any, ...]:
    """Returns a description of a value without its identity: for a proxy, everything but its name.

    Args:
        value: a proxy or a constant.
        has_gradient: the description of whether a tensor has a gradient; None to read it from the tensor.
    """
    if isinstance(value, TensorProxy):
        has_gradient = value.grad is not None if has_gradient is None else has_gradient
        return (
            type(value), tuple(value.shape), value.device, value.dtype, value.true_dtype, value.requires_grad,
            has_gradient, value.distparallel_type, value.thunder_fsdp_padding_size, frozenset(value.tags),
        )  # fmt: skip
    if isinstance(value, NumberProxy):
        return type(value), type(value.value), repr(value.value), frozenset(value.tags)
    if isinstance(value, Proxy):
        return type(value), frozenset(value.tags)
    return type(value), repr(value)


_COUNTED = re.compile(r"(\D+)(\d+)")


def check_agreement(one: BlockRecording, other: BlockRecording, correspondence: Correspondence) -> None:
    """Checks that the recording of an interpreted block is the one that another block's recording predicts.

    Raises:
        Declined: if it is not.
    """
    if one.counts != other.counts or len(one.reads) != len(other.reads) or one.source != other.source:
        raise Declined("two similar blocks were interpreted differently", Scope.BLOCK)
    for read, value in zip(other.reads, find_reads(one, other.module, correspondence), strict=True):
        if value is not read.value and (type(value) is not type(read.value) or repr(value) != repr(read.value)):
            raise Declined("two similar blocks were read in another order", Scope.BLOCK)
    if _Description(one).parts != _Description(other).parts:
        raise Declined("two similar blocks did other things", Scope.BLOCK)


class _Description:
    """A recording in a canonical form, which is equal for blocks that were interpreted alike.

    Names and provenance records are numbered from the start of the block. Those of arguments are given by position.

    Attributes:
        parts: the canonical form, for comparison.
    """

    def __init__(self, recording: BlockRecording) -> None:
        self.parts: list[Any] = []
        self._start = recording.start.names
        self._names: dict[str, Any] = {}
        self._origins = {id(recording.root): 0}
        for position, wrapper in enumerate(list_wrappers(recording.args)):
            self._origins.setdefault(id(wrapper.provenance), len(self._origins))
            if is_proxy(wrapper.value):
                self._names[wrapper.value.name] = "argument", position
        for read in recording.reads:
            self.parts += (read.symbols, read.names)
            self._add_origin(read.origin)
            self._name(read.proxy, is_read=True)
        for symbol in recording.symbols:
            self._add_symbol(symbol)
        self._add_result(recording.result)

    def _add_origin(self, origin: Any) -> None:
        pending = [origin]
        while pending:
            each = pending.pop()
            if id(each) in self._origins:
                self.parts.append(self._origins[id(each)])
            else:
                self._origins[id(each)] = len(self._origins)
                self.parts += (_describe_origin(each), len(each.inputs))
                pending.extend(each.inputs)

    def _add_symbol(self, symbol: Any) -> None:
        location = symbol.source_filename, symbol.source_positions
        self.parts += (id(symbol.sym), symbol.header, symbol.tags, *location, len(symbol.subsymbols))
        self._add_values((symbol.args, symbol.kwargs))
        for each in symbol.subsymbols:
            self._add_symbol(each)
        self._add_values(symbol.output, are_new=True)

    def _add_values(self, values: Any, *, are_new: bool = False) -> None:
        leaves, spec = tree_flatten(values)
        self.parts.append(spec)
        for leaf in leaves:
            self.parts.append(describe_value(leaf))
            if is_proxy(leaf):
                if are_new:
                    self._name(leaf)
                self.parts.append(self._names.get(leaf.name, leaf.name))

    def _name(self, proxy: Any, *, is_read: bool = False) -> None:
        """Numbers a name, if it is new.

        Raises:
            Declined: if the name is neither generated from Thunder's name counter nor that of a read.
        """
        counted = _COUNTED.fullmatch(proxy.name)
        if proxy.name in self._names:
            return
        if counted is None and not is_read:
            raise Declined("two similar blocks gave other names", Scope.BLOCK)
        number = len(self._names) if counted is None else int(counted[2]) - self._start
        self._names[proxy.name] = "new", counted and counted[1], number

    def _add_result(self, wrapper: Any) -> None:
        self.parts += (type(wrapper.value), wrapper.has_item_tracking)
        self._add_origin(wrapper.provenance)
        if type(wrapper.value) is tuple:
            for item in wrapper.item_wrappers:
                self._add_result(item)
        else:
            self._add_values(wrapper.value)


def _describe_origin(origin: Any) -> tuple[Any, ...]:
    value = origin.value
    if not isinstance(value, int | float | str | None):
        value = id(value)
    shown = (type(value), repr(value)) if name_instruction(origin.inst) == "CONSTANT" else ()
    return name_instruction(origin.inst), origin.output_idx, repr(origin.output_key), origin.ext_flag, shown
