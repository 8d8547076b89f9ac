"""Writes a block out as Thunder would have interpreted it, by what it did for one that is alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fusioncache.accelerators.layers import origins
from fusioncache.accelerators.layers.conflict import Conflict
from fusioncache.accelerators.layers.likeness import Likeness
from fusioncache.accelerators.layers.recording import Recording, State
from fusioncache.ir.errors import Declined, Scope


def find_reads(template: Recording, module: Any, likeness: Likeness) -> list[Any]:
    """Returns the values of another block for what was read of the first.

    Raises:
        Declined: if something differs that anything looked at.
    """
    found = []
    for position, read in enumerate(template.reads):
        value = origins.find_value(read.origin, template.root, module)
        owner = origins.find_owner(read.origin, template.root, template.module)
        if owner in likeness.differing:
            if position in template.touched:
                raise Declined(f"{owner[1]} differs, and is looked at", Scope.BLOCK)
        elif id(read.value) in likeness.partners:
            if likeness.partners[id(read.value)] is not value:
                raise Declined("a parameter is at another place", Scope.BLOCK)
        elif type(value) is not type(read.value) or repr(value) != repr(read.value):
            raise Declined("a value differs", Scope.BLOCK)
        found.append(value)
    return found


class Stamp:
    """One block, while it is written out."""

    def __init__(self, template: Recording, root: Any, args: tuple[Any, ...], context: Any) -> None:
        """Takes what happened for the first block, and where this one is found and what it is called with."""
        others = {id(template.root): root}
        self._proxies: dict[str, Any] = {}
        self._wrappers = {id(old): new for old, new in zip(template.args, args, strict=True)}
        for old, new in pair_all(template.args, args):
            others[id(old.provenance)] = new.provenance
            if is_proxy(old.value):
                self._proxies[old.value.name] = new.value
        self._copies = origins.Copies(others)
        self._template, self._context = template, context
        self._trace = context.computation_trace

    def write(self, values: list[Any]) -> Any:
        """Does all that interpreting the block would do to the trace, and returns its result in a wrapper.

        Raises:
            Conflict: if the trace comes out otherwise.
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
        """Returns what was written out, in the words of ``Observer.see_written``."""
        assert self._template.counts is not None
        start, count = self._template.start.names, self._template.counts.names
        names = {old: new.name for old, new in self._proxies.items()}
        return (start, start + count), names, self._trace.name_ctr - start - count

    def _read(self, read: Any, value: Any, before: State) -> None:
        from fusioncache.thunder_adapter.accelerator_api import WrappedValue
        from fusioncache.thunder_adapter.api import Proxy

        if self._trace.name_ctr - before.names != read.names:
            raise Conflict("another number of names")
        wrapper = WrappedValue(value, provenance=self._copies.copy(read.origin))
        has_proxy = wrapper.original_value is not wrapper.nothing  # as a tensor, which is given it with the wrapper
        proxy = wrapper.value if has_proxy else self._context.proxify(wrapper)
        if type(proxy) is not type(read.proxy) or not isinstance(proxy, Proxy):
            raise Conflict("another proxy")
        self._proxies[read.proxy.name] = proxy

    def _call(self, symbol: Any) -> None:
        from fusioncache.thunder_adapter.api import tree_map

        self._trace.set_current_source_location(symbol.source_filename, symbol.source_positions)
        args, kwargs = tree_map(self._replace, (symbol.args, symbol.kwargs))
        self._match(symbol.output, symbol.sym(*args, **kwargs))
        if self._trace.bound_symbols[-1].sym is not symbol.sym:
            raise Conflict("another symbol")

    def _replace(self, value: Any) -> Any:
        from fusioncache.thunder_adapter.api import Proxy

        return self._proxies.get(value.name, value) if isinstance(value, Proxy) else value

    def _match(self, old: Any, new: Any) -> None:
        from fusioncache.thunder_adapter.api import Proxy, tree_flatten

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
        from fusioncache.thunder_adapter.accelerator_api import WrappedValue

        if id(wrapper) in self._wrappers:
            return self._wrappers[id(wrapper)]
        origin = self._copies.copy(wrapper.provenance)
        if type(wrapper.value) is not tuple:
            return WrappedValue(self._replace(wrapper.value), provenance=origin)
        items = [self._wrap(item) for item in wrapper.item_wrappers]
        new = WrappedValue(tuple(item.value for item in items), provenance=origin)
        new.item_wrappers = items
        new.has_item_tracking = wrapper.has_item_tracking
        return new


def is_proxy(value: Any) -> bool:
    """Tells whether a value stands for one that is not known before the program runs."""
    from fusioncache.thunder_adapter.api import Proxy

    return isinstance(value, Proxy)


def pair_all(ones: tuple[Any, ...], others: tuple[Any, ...]) -> Iterator[tuple[Any, Any]]:
    """Yields each wrapper with the other one in its place, those of items of tuples included."""
    for one, other in zip(ones, others, strict=True):
        yield one, other
        if type(one.value) is tuple and one is not other:
            yield from pair_all(tuple(one.item_wrappers), tuple(other.item_wrappers))


def describe_value(value: Any, *, has_gradient: bool | None = None) -> tuple[Any, ...]:
    """Returns what is known of a value but which one it is: of a proxy everything but its name.

    Args:
        value: a proxy or a constant.
        has_gradient: what to say of whether a tensor has a gradient; None to look.
    """
    from fusioncache.thunder_adapter.api import NumberProxy, Proxy, TensorProxy

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
