"""Which sizes and numbers the regions of one skeleton had, as the store has it: what a later process generalizes with.

No code is in it, and nothing is right or wrong by it: whoever reads it fills the holes of a skeleton of its own, and
whether a region is an instance of what comes of that is decided there.
"""

from __future__ import annotations

from dataclasses import dataclass

from fusioncache.ir import Const, Key, Value
from fusioncache.ir.strict_json import Value as Content
from fusioncache.ir.strict_json import decode, encode
from fusioncache.store import Store
from fusioncache.store.entry import SIZES_SLOT

FORMAT = 1
_SIZES = "sizes"
_PATIENCE = 10.0
"""Seconds for which to wait for other processes that write the same, which takes them milliseconds."""
_MOST = 64
"""How many places of one skeleton are kept: the newest."""

Holes = tuple[Value, ...]
"""What is in the holes of a region, in their order."""


@dataclass(frozen=True, slots=True)
class KeptPlace:
    """Regions of several programs that were generalized, or the only one so far.

    Attributes:
        function: what those programs are of: see ``Generation``.
        instances: the regions.
    """

    function: str
    instances: tuple[Holes, ...]


def read_places(store: Store, key: Key) -> tuple[KeptPlace, ...]:
    """Returns the places that are stored for a skeleton. What cannot be read is removed. Never raises."""
    artifacts = store.peek(key, SIZES_SLOT)
    if artifacts is None:
        return ()
    try:
        (places,) = decode(artifacts.get(_SIZES, b""), "sizes", format=FORMAT).fields("places")
        return tuple(map(_decode_place, places.items()))
    except ValueError as error:
        store.discard(key, SIZES_SLOT, f"sizes that do not decode: {type(error).__name__}")
        return ()


def keep_place(store: Store, key: Key, place: KeptPlace, name: str) -> None:
    """Adds a place to those that are stored for a skeleton, in the stead of those that it goes on from. Never raises.

    Args:
        store: where they are.
        key: of the skeleton.
        place: the new one.
        name: for people.
    """
    with store.take_turn(key, SIZES_SLOT, _PATIENCE):
        known = read_places(store, key)
        if any(_covers(other, place) for other in known):
            return
        places = [*(other for other in known if not _covers(place, other)), place][-_MOST:]
        store.remove(key, SIZES_SLOT)
        content = encode({"format": FORMAT, "places": [_encode_place(each) for each in places]})
        store.save(key, SIZES_SLOT, {_SIZES: content}, name=name)


def _covers(place: KeptPlace, other: KeptPlace) -> bool:
    return place.function == other.function and set(place.instances).issuperset(other.instances)


def _encode_place(place: KeptPlace) -> dict[str, object]:
    instances = [[_encode_value(value) for value in instance] for instance in place.instances]
    return {"function": place.function, "instances": instances}


def _encode_value(value: Value) -> int | list[str]:
    return [value.kind, value.text] if isinstance(value, Const) else value


def _decode_place(content: Content) -> KeptPlace:
    function, instances = content.fields("function", "instances")
    found = tuple(tuple(map(_decode_value, instance.items())) for instance in instances.items())
    if not found:
        raise instances.error("regions")
    return KeptPlace(function.text(), found)


def _decode_value(content: Content) -> Value:
    if isinstance(content.content, list):
        kind, text = content.items(2)
        return Const(kind.text(), text.text())
    return content.integer()
