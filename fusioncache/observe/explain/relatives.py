"""Keys that are the same but for sizes and numbers: which they are, and what varies between them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fusioncache.ir import Const, Graph, Value
from fusioncache.ir.ingredients import GRAPH
from fusioncache.observe.explain.difference import Texts
from fusioncache.template.general_region import make_family
from fusioncache.template.skeleton import Skeleton, skeleton_of
from fusioncache.template.text import read_exactly


@dataclass(frozen=True, slots=True)
class Varying:
    """A size or a number that is not the same in all of them.

    Attributes:
        place: where an input has it, such as ``dimension 1 of %0``; empty if it is no size of an input.
        values: those that it has in each, in their order.
    """

    place: str
    values: tuple[Value, ...]

    @property
    def seen(self) -> tuple[Value, ...]:
        """Its values, each once, the smallest first."""
        return tuple(sorted(dict.fromkeys(self.values), key=_as_number))

    @property
    def name(self) -> str:
        """What it is, in words."""
        return self.place or ("a number" if isinstance(self.values[0], Const) else "a size that no input has")

    def text(self) -> str:
        """Returns the same for people."""
        return f"{self.name}: {', '.join(map(str, self.seen))}"

    def data(self) -> dict[str, Any]:
        """Returns the same as JSON has it."""
        return {"place": self.place, "seen": [_as_number(value) for value in self.seen]}


@dataclass(frozen=True, slots=True)
class Relatives:
    """Keys of one backend and environment that are the same but for sizes and numbers.

    Attributes:
        members: their positions among those that were given, in order.
        varying: what differs between them.
    """

    members: tuple[int, ...]
    varying: tuple[Varying, ...]


def find_relatives(keys: Sequence[Texts]) -> tuple[Relatives, ...]:
    """Returns those of some keys that have relatives among them, given the ingredients of each.

    What this version cannot read has none.
    """
    alike: defaultdict[tuple[Skeleton, tuple[tuple[str, str], ...]], list[int]] = defaultdict(list)
    graphs: dict[int, Graph] = {}
    for position, key in enumerate(keys):
        try:
            graphs[position] = read_exactly(key)
        except ValueError:
            continue
        alike[skeleton_of(graphs[position]), _environment(key)].append(position)
    groups = (tuple(members) for members in alike.values() if len(members) > 1)
    return tuple(Relatives(members, _find_varying([graphs[one] for one in members])) for members in groups)


def _find_varying(graphs: Iterable[Graph]) -> tuple[Varying, ...]:
    general = make_family(tuple(graphs)).general
    columns = zip(*general.values, strict=True)
    return tuple(
        Varying("" if place is None else f"dimension {place[1]} of %{place[0]}", column)
        for place, column in zip(general.places, columns, strict=True)
    )


def _environment(key: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, text) for name, text in key.items() if name not in GRAPH))


def _as_number(value: Value) -> int | float:
    return float.fromhex(value.text) if isinstance(value, Const) else value
