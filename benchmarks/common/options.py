"""Types of command line options."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click


class Layers(click.ParamType):
    """Numbers of layers, ascending, as in ``1,2,4,8``."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """See click."""
        if not isinstance(value, str):
            return tuple(value)
        try:
            layers = tuple(sorted({int(part) for part in value.split(",")}))
        except ValueError:
            layers = (0,)
        if layers[0] < 1:
            self.fail(f"{value!r} is no list of positive numbers such as 1,2,4,8", param, ctx)
        return layers


class Modes(click.ParamType):
    """Some of a few words, as in ``cached,uncached``."""

    name = "modes"

    def __init__(self, known: Sequence[str]):
        self._known = known

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """See click."""
        modes = tuple(dict.fromkeys(value.split(","))) if isinstance(value, str) else tuple(value)
        for mode in modes:
            if mode not in self._known:
                self.fail(f"{mode!r} is not one of {', '.join(self._known)}", param, ctx)
        return modes


class NewFile(click.ParamType):
    """A file to write, with one of some suffixes. Its directory is made."""

    name = "file"

    def __init__(self, suffixes: Sequence[str] = ()):
        self._suffixes = suffixes

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """See click."""
        path = Path(value)
        if self._suffixes and path.suffix not in self._suffixes:
            self.fail(f"{path.name!r} does not end in {' or '.join(self._suffixes)}", param, ctx)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            self.fail(f"{value!r} cannot be written: {error.strerror}", param, ctx)
        if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
            self.fail(f"{value!r} cannot be written", param, ctx)
        return path
