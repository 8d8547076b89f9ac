"""What a block is called with, and what it returns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from fusioncache.accelerators.layers import origins
from fusioncache.accelerators.layers.recording import Recording
from fusioncache.accelerators.layers.stamping import describe_value, is_proxy, pair_all
from fusioncache.ir.errors import Declined, Scope
from fusioncache.thunder_adapter.hooks import has_type


def describe_args(recording: Recording, context: Any) -> tuple[Any, ...]:
    """Returns what two calls must have in common: what is known of each argument, and which ones are the same."""
    from fusioncache.thunder_adapter.api import variableify

    described: list[tuple[Any, ...]] = []
    first: dict[str, int] = {}
    for wrapper in _flatten(recording.args):
        value = wrapper.value
        if is_proxy(value):
            renamed = variableify(value) in context._proxy_swapmap
            seen = first.setdefault(value.name, len(first))
            described.append(
                (describe_value(value), renamed, seen, type(wrapper.original_value), value.history is None)
            )
        elif value is None or has_type(value, (bool, int, float, str)):
            described.append((type(value), repr(value), origins.name_of(wrapper.provenance.inst)))
        elif type(value) is tuple:
            described.append((tuple, len(value)))
        else:  # code outside of the block may change it, or may have put there what the block is given as well
            raise Declined(f"an argument is a {type(value).__name__}", Scope.BLOCK)
        described.append((wrapper.provenance.ext_flag, wrapper.has_item_tracking))
    return tuple(described)


def _flatten(args: Iterable[Any]) -> Iterator[Any]:
    for wrapper in args:
        yield wrapper
        if type(wrapper.value) is tuple:
            if any(each is None for each in wrapper.item_wrappers):
                raise Declined("an argument has items that were not looked at", Scope.BLOCK)
            yield from _flatten(wrapper.item_wrappers)


def mixes_up(template: Recording, wanted: Recording) -> bool:
    """Tells whether what is an argument here was something else of the trace there."""
    from fusioncache.thunder_adapter.api import tree_flatten

    args = list(pair_all(template.args, wanted.args))
    changed = {new.value.name for old, new in args if is_proxy(new.value) and new.value.name != old.value.name}
    used = tree_flatten([(each.args, each.kwargs) for each in template.symbols])[0]
    taken = {old.value.name for old, _ in args if is_proxy(old.value)}
    made = tree_flatten([each.output for each in template.symbols])[0]
    own = taken | {each.name for each in made if is_proxy(each)} | {read.proxy.name for read in template.reads}
    return any(each.name in changed for each in used if is_proxy(each) and each.name not in own)


def find_changed(template: Recording, wanted: Recording) -> frozenset[int]:
    """Returns the positions of the arguments, items of tuples included, for which another proxy is given here."""
    pairs = zip(_flatten(template.args), _flatten(wanted.args), strict=True)
    return frozenset(
        place for place, (old, new) in enumerate(pairs) if is_proxy(old.value) and old.value.name != new.value.name
    )


def check_result(wrapper: Any) -> None:
    """Refuses results that are neither tensors, nor None, nor tuples of them."""
    from fusioncache.thunder_adapter.api import TensorProxy

    if type(wrapper.value) is tuple:
        for item in wrapper.item_wrappers:
            if item is None:
                raise Declined("a result has items that were not looked at", Scope.BLOCK)
            check_result(item)
    elif type(wrapper.value) is not TensorProxy and wrapper.value is not None:
        raise Declined(f"a block returns a {type(wrapper.value).__name__}", Scope.BLOCK)
