"""The templates of the record that differ from one in sizes and numbers alone: what of them varies, and how."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

from fusioncache.ir import Const, Graph, Value
from fusioncache.ir.ingredients import GRAPH
from fusioncache.record.reader import RecordReader
from fusioncache.record.stats import TemplateStats
from fusioncache.template.general_region import make_family
from fusioncache.template.skeleton import skeleton_of
from fusioncache.template.text import read_exactly

_MOST = 256
"""How many templates with the same telling ops are looked into."""


@dataclass(frozen=True, slots=True)
class Varying:
    """A size or a number that is not the same in all of them.

    Attributes:
        place: where an input has it, such as ``dimension 1 of %0``; empty if it is no size of an input.
        seen: its values, each once, in order.
    """

    place: str
    seen: tuple[Value, ...]

    def text(self) -> str:
        """Returns the same for people."""
        other = "a number" if isinstance(self.seen[0], Const) else "a size that no input has"
        return f"{self.place or other}: {', '.join(map(str, self.seen))}"

    def data(self) -> dict[str, Any]:
        """Returns the same as JSON has it."""
        return {"place": self.place, "seen": [_as_number(value) for value in self.seen]}


def find_varying(record: RecordReader, template: TemplateStats) -> tuple[Varying, ...]:
    """Returns what varies between a template and those that are the same but for sizes and numbers."""
    own = _read(template)
    if own is None:
        return ()
    named = [each for each in record.find(template.name.rpartition("_")[0]) if each.digest != template.digest]
    others = record.add_ingredients(tuple(islice(named, _MOST)))
    graphs = [_read(other) for other in others if _environment(other) == _environment(template)]
    skeleton = skeleton_of(own)
    alike = [graph for graph in graphs if graph is not None and skeleton_of(graph) == skeleton]
    general = make_family([own, *alike]).general
    columns = zip(*general.values, strict=True)
    return tuple(
        Varying("" if place is None else f"dimension {place[1]} of %{place[0]}", _sort(column))
        for place, column in zip(general.places, columns, strict=True)
    )


def _read(template: TemplateStats) -> Graph | None:
    """Returns the graph of a template; None if this version cannot read it."""
    try:
        return read_exactly(dict(template.ingredients))
    except ValueError:
        return None


def _environment(template: TemplateStats) -> dict[str, str]:
    return {name: text for name, text in template.ingredients if name not in GRAPH}


def _sort(values: Iterable[Value]) -> tuple[Value, ...]:
    return tuple(sorted(dict.fromkeys(values), key=_as_number))


def _as_number(value: Value) -> int | float:
    return float.fromhex(value.text) if isinstance(value, Const) else value
