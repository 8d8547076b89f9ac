"""Descriptions of values by a new ``Describer``."""

from collections.abc import Mapping
from typing import Any

from fusioncache.accelerators.programs.describe import Describer


class Box:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


def described(value: object) -> str:
    return Describer().describe(value)


def walked(model: object) -> Mapping[str, object]:
    """Returns a model's lines by path, and under ``classes`` the classes that they name."""
    describer = Describer()
    lines = dict(describer.walk("model", model))
    return {**lines, "classes": dict(describer.list_classes())}


def changed(before: Mapping[str, object], after: Mapping[str, object]) -> set[str]:
    return {path for path in {*before, *after} if before.get(path) != after.get(path)}
