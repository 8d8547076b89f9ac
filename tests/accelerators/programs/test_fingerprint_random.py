"""Random parts of random classes are changed: what is known of the classes then is what is described without that."""

import collections
import contextlib
import functools
import random
import types
from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fusioncache.accelerators.programs.describe import Describer, list_lines
from fusioncache.accelerators.programs.fingerprint import KnownClasses


class Thing:
    def __init__(self) -> None:
        self.first, self.second = 1, 2


class Slotted:
    __slots__ = ("first", "second")


def make_function(content: Any) -> Callable[..., Any]:
    def function(x: Any, y: Any = content, *, z: Any = 1) -> Any:
        return content, x, y, z

    function.mark = [content]  # type: ignore[attr-defined]
    return function


class Tree:
    """A class that holds random things, and these, so that one of them can be changed."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.parts: list[Any] = []
        self.body = type("Body", (), {f"part{number}": self.make(3) for number in range(4)})
        self.parts.append(self.body)

    def make(self, depth: int) -> Any:
        """Returns a number, a text, or a thing that holds others, or one that was made before."""
        rng = self.rng
        if depth == 0 or rng.random() < 0.2:
            return rng.choice([0, 1, True, 1.0, -0.0, 0.0, "a", "b", None, (), b"a"])
        if self.parts and rng.random() < 0.2:
            return rng.choice(self.parts)
        part = rng.choice(_MAKERS)([self.make(depth - 1) for _ in range(rng.randrange(4))])
        if not isinstance(part, tuple | frozenset):
            self.parts.append(part)
        return part

    def change(self) -> None:
        """Changes something, or nothing at all."""
        part, other = self.rng.choice(self.parts), self.rng.choice(self.parts)
        new = self.rng.choice([self.make(0), self.make(1)])
        with contextlib.suppress(TypeError, AttributeError, IndexError, KeyError, ValueError):
            self.rng.choice(_CHANGES)(self.rng, part, other, new)


def make_object(items: list[Any]) -> Any:
    thing = Thing()
    vars(thing).update((f"item{number}", item) for number, item in enumerate(items))
    return thing


def make_slotted(items: list[Any]) -> Any:
    thing = Slotted()
    for name, item in zip(Slotted.__slots__, items, strict=False):
        setattr(thing, name, item)
    return thing


_MAKERS: list[Callable[[list[Any]], Any]] = [
    list,
    tuple,
    lambda items: dict(enumerate(items)),
    lambda items: {f"item{number}": item for number, item in enumerate(items)},
    lambda items: collections.OrderedDict((f"item{number}", item) for number, item in enumerate(items)),
    lambda items: collections.defaultdict(list, enumerate(items)),
    lambda items: collections.deque(items, 5),
    lambda items: {item for item in items if isinstance(item, int | str)},
    make_object,
    make_slotted,
    make_function,
    lambda items: functools.partial(make_object, *items),
    lambda items: property(make_function(items)),
    lambda items: staticmethod(make_function(items)),
    lambda items: types.MethodType(make_function(items), make_object(items)),
    lambda items: types.MappingProxyType({"items": items}),
    lambda items: type(f"Inner{id(items)}", (), {f"item{number}": item for number, item in enumerate(items)}),
]


def move(rng: random.Random, part: Any, other: Any, new: Any) -> None:
    other.insert(0, part.pop())


def rename(rng: random.Random, part: Any, other: Any, new: Any) -> None:
    key, item = part.popitem()
    part[f"{key}x"] = item


def reorder(rng: random.Random, part: Any, other: Any, new: Any) -> None:
    key = rng.choice(list(part))
    part[key] = part.pop(key)


_CHANGES: list[Callable[[random.Random, Any, Any, Any], Any]] = [
    move,
    rename,
    reorder,
    lambda rng, part, other, new: part.append(new),
    lambda rng, part, other, new: part.add(new),
    lambda rng, part, other, new: part.__setitem__(rng.choice([0, 1, "item0"]), new),
    lambda rng, part, other, new: part.move_to_end("item0"),
    lambda rng, part, other, new: part.reverse(),
    lambda rng, part, other, new: setattr(part, rng.choice(["item0", "first", "mark", "another"]), new),
    lambda rng, part, other, new: delattr(part, rng.choice(["item0", "first", "second", "mark"])),
    lambda rng, part, other, new: setattr(part, "__defaults__", (new,)),
    lambda rng, part, other, new: setattr(part, "__kwdefaults__", {"z": new}),
    lambda rng, part, other, new: part.__kwdefaults__.update(z=new),
    lambda rng, part, other, new: setattr(part.__closure__[0], "cell_contents", new),
    lambda rng, part, other, new: part.mark.append(new),
    lambda rng, part, other, new: setattr(part, "__code__", move.__code__),
    lambda rng, part, other, new: setattr(part, "__class__", type(other)),
    lambda rng, part, other, new: setattr(part, rng.choice(["__name__", "__qualname__", "__module__"]), "other"),
    lambda rng, part, other, new: None,
]


def describe(tree: Tree, known: KnownClasses) -> list[tuple[str, str]]:
    describer = Describer(known=known)
    return [*describer.walk("model", tree.body), *list_lines(describer.list_classes())]


@settings(max_examples=60)
@given(st.integers(0, 2**32))
def test_what_is_known_is_what_is_described(seed):
    tree = Tree(random.Random(seed))
    for _ in range(6):
        learning = KnownClasses(is_learning=True)
        before = describe(tree, learning)
        assert learning.found and KnownClasses(learning.found).are_unchanged(learning.found)
        assert describe(tree, KnownClasses(learning.found)) == before == describe(tree, KnownClasses())
        for _ in range(tree.rng.randrange(3)):
            tree.change()
        assert describe(tree, KnownClasses(learning.found)) == describe(tree, KnownClasses())
