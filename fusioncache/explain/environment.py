"""In what two environments differ: versions, options, the device, and all else beside the graph."""

from __future__ import annotations

import re
from collections.abc import Mapping

from fusioncache.explain.change import NONE, Change
from fusioncache.explain.parts import GRAPH

_LONGEST = 60
_BEFORE = 20
"""Characters of a long value that are shown before it differs."""

_VALUE = re.compile(r"(.*) \(default (.*?)\)", re.DOTALL)
"""A setting that is not as it was, with what it was."""

_LISTS = {"versions": "the {} version", "options": "the option {}", "settings": "the setting {}"}
"""Ingredients of a name and a value a line, and how to say which."""


def environment_changes(a: Mapping[str, str], b: Mapping[str, str]) -> tuple[Change, ...]:
    """One change for each ingredient, package, option or argument that differs.

    Another backend is a change of its own, from which all others follow. So do other inputs for the layout.
    """
    if a.get("backend") != b.get("backend"):
        return (_change("backend", "the backend", a.get("backend"), b.get("backend")),)
    changes: list[Change] = []
    for name in dict.fromkeys([*a, *b]):
        if name not in GRAPH and a.get(name) != b.get(name):
            changes += _of(name, a, b)
    return tuple(changes)


def _of(name: str, a: Mapping[str, str], b: Mapping[str, str]) -> list[Change]:
    if name == "layout":
        return _layouts(a.get(name), b.get(name)) if a.get("inputs") == b.get("inputs") else []
    if name == "order":
        # Another layout is why there is one here and none there.
        alike = a.get("layout") == b.get("layout")
        return [_change(name, "the order of operands", a.get(name), b.get(name))] if alike else []
    if name in _LISTS and name in a and name in b:
        x, y = _by_name(a[name]), _by_name(b[name])
        places = [item for item in dict.fromkeys([*x, *y]) if x.get(item) != y.get(item)]
        if places:
            return [_change(name, _LISTS[name].format(item), *_named(x.get(item), y.get(item))) for item in places]
    return [_change(name, f"the {name}", a.get(name), b.get(name))]


def _named(a: str | None, b: str | None) -> tuple[str | None, str | None]:
    """Two values of one setting. One that is not in the list has the default, and that stands beside the other one."""
    x, y = (_VALUE.fullmatch(text or "") for text in (a, b))
    return (x[1] if x else y[2] if y and a is None else a), (y[1] if y else x[2] if x and b is None else b)


def _layouts(a: str | None, b: str | None) -> list[Change]:
    x, y = (a or "").split("\n"), (b or "").split("\n")
    if a is None or b is None or len(x) != len(y):
        return [_change("layout", "the layout", a, b)]
    return [
        _change("layout", f"the layout of input %{place}", one, other)
        for place, (one, other) in enumerate(zip(x, y, strict=True))
        if one != other
    ]


def _by_name(text: str) -> dict[str, str]:
    """The value of each line by its first word."""
    return {line.partition(" ")[0]: line.partition(" ")[2] for line in text.split("\n")}


def _change(ingredient: str, place: str, a: str | None, b: str | None) -> Change:
    x, y = (NONE if text is None else text.replace("\n", "; ") for text in (a, b))
    return Change(ingredient, place, *_shortened(x or "empty", y or "empty"))


def _shortened(a: str, b: str) -> tuple[str, str]:
    """Long values from where they begin to differ."""
    if max(len(a), len(b)) <= _LONGEST:
        return a, b
    differ = next((place for place, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    start = max(differ - _BEFORE, 0)
    return _cut(a, start), _cut(b, start)


def _cut(text: str, start: int) -> str:
    part = text[start : start + _LONGEST]
    return f"{'...' if start else ''}{part}{'...' if start + _LONGEST < len(text) else ''}"
