"""Nested tuples, lists and dicts: taken apart into what they hold, and put together again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Build = Callable[[Sequence[Any]], Any]
"""Puts leaves together as they were, in new lists and dicts."""


def take_apart(value: Any) -> tuple[list[Any], Build]:
    """Returns the leaves of nested tuples, lists and dicts, and what puts others together in the same way."""
    leaves: list[Any] = []
    return leaves, _take_apart(value, leaves)


def _take_apart(value: Any, leaves: list[Any]) -> Build:
    if type(value) is dict:
        names = tuple(value)
        builds = [_take_apart(value[name], leaves) for name in names]
        return lambda found: {name: build(found) for name, build in zip(names, builds, strict=True)}
    if type(value) in (tuple, list):
        return _take_sequence_apart(value, leaves)
    position = len(leaves)
    leaves.append(value)
    return lambda found: found[position]


def _take_sequence_apart(value: Sequence[Any], leaves: list[Any]) -> Build:
    start, kind = len(leaves), type(value)
    builds = [_take_apart(each, leaves) for each in value]
    stop = len(leaves)
    if stop - start == len(value) and not any(type(each) in (tuple, list, dict) for each in value):
        return (lambda found: list(found[start:stop])) if kind is list else (lambda found: tuple(found[start:stop]))
    if kind is list:
        return lambda found: [build(found) for build in builds]
    return lambda found: tuple([build(found) for build in builds])
