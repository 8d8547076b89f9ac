"""Options that several benchmark commands share, and their types."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click


class Numbers(click.ParamType):
    """Option type for a list of positive numbers, in order, as in ``64,96,64``.

    Args:
        real: whether to accept ``real`` for the number of layers in a model's configuration. It becomes None.
        least: the smallest number to accept: 1 or 0.
    """

    name = "numbers"

    def __init__(self, real: bool = False, least: int = 1):
        self._real = real
        self._least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int | None, ...]:
        """Returns the numbers."""
        if not isinstance(value, str):
            return tuple(value)
        words = [word.strip() for word in value.split(",")]
        if not all(
            (self._real and word == "real") or (word.isdecimal() and int(word) >= self._least) for word in words
        ):
            expected = "2,4,real" if self._real else "64,96,65"
            self.fail(f"{value!r} is no list of numbers such as {expected}", param, ctx)
        return tuple(None if word == "real" else int(word) for word in words)


class Words(click.ParamType):
    """Option type for a list of words from a fixed set, as in ``cached,uncached``."""

    name = "words"

    def __init__(self, known: Sequence[str]):
        self._known = known

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """Returns the words without duplicates."""
        words = tuple(dict.fromkeys(value.split(","))) if isinstance(value, str) else tuple(value)
        for word in words:
            if word not in self._known:
                self.fail(f"{word!r} is not one of {', '.join(self._known)}", param, ctx)
        return words


class NewFile(click.ParamType):
    """Option type for a file to write, with one of some suffixes. Makes the file's directory."""

    name = "file"

    def __init__(self, suffixes: Sequence[str] = ()):
        self._suffixes = suffixes

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Returns the path, after checking that it can be written."""
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


class Variable(click.ParamType):
    """Option type for an environment variable, as in ``NAME=VALUE``."""

    name = "variable"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """Returns the name and the value."""
        if not isinstance(value, str):
            return value[0], value[1]
        name, equals, text = value.partition("=")
        if not name or not equals:
            self.fail(f"{value!r} is not NAME=VALUE", param, ctx)
        return name, text


def command(doc: str | None) -> Callable[[Callable[..., None]], click.Command]:
    """Returns a decorator that makes a function a command with a module's docstring as its help."""
    return click.command(context_settings={"show_default": True}, help=doc)


def backend_option(*names: str) -> Callable[..., Any]:
    """Adds ``--backend``: one of these backends, or by default of all."""
    choice = click.Choice(["auto", *(names or ("nvfuser", "inductor", "eager"))])
    return click.option("--backend", type=choice, default="auto")


def repeat_option(help: str = "Processes for each point; the median counts.", default: int = 1) -> Callable[..., Any]:
    """Adds ``--repeat``."""
    return click.option("--repeat", type=click.IntRange(min=1), default=default, help=help)


def layers_option(default: int) -> Callable[..., Any]:
    """Adds ``--layers``, a single number."""
    return click.option("--layers", type=click.IntRange(min=1), default=default, help="Of the model.")


def count_option(name: str, default: int, help: str, *, least: int = 1) -> Callable[..., Any]:
    """Adds an option whose value is a count."""
    return click.option(name, type=click.IntRange(min=least), default=default, help=help)


limit_option = click.option("--limit", type=click.FloatRange(min=1.0), help="Seconds that all processes may take.")
json_option = click.option(
    "--json", "json_file", type=NewFile(), metavar="FILE", help="Write the result as one JSON object."
)


def require_litgpt(model: str) -> None:
    """Checks that litgpt is installed, which ``model`` needs.

    Raises:
        click.UsageError: if it is not installed.
    """
    if find_spec("litgpt") is None:
        raise click.UsageError(f"{model} needs litgpt: pip install litgpt==0.5.13 jsonargparse (or fusioncache[bench])")
