"""What an earlier run of a benchmark has measured already, and whether it measured the same."""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

import click

from benchmarks.common.results import Point

_SAME = ("gpu", "processor", "commit", "versions")


def read_finished(
    file: Path | None, environment: Mapping[str, Any], options: Mapping[str, Any], may_differ: Set[str]
) -> list[Point]:
    """Returns the points that have a result.

    Args:
        file: the JSON that the earlier run wrote.
        environment: of this run.
        options: of this run.
        may_differ: those of them that may have been others.

    Raises:
        click.UsageError: if no file is named, or it was measured on something else; the message says on what.
    """
    if file is None:
        raise click.UsageError("--resume needs --json FILE: the file to go on with")
    try:
        return _read(file.read_text(), environment, options, may_differ) if file.exists() else []
    except ValueError as error:
        raise click.UsageError(f"--resume cannot go on with {file}: {error}") from None


def _read(text: str, environment: Mapping[str, Any], options: Mapping[str, Any], may_differ: Set[str]) -> list[Point]:
    try:
        result = json.loads(text)
        before, then = result["environment"], result["environment"]["options"]
        points = [point for point in result["points"] if "error" not in point]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError("it is no result of this benchmark") from error
    now = json.loads(json.dumps(options))  # tuples as lists
    pairs = [(name, before.get(name), environment.get(name)) for name in _SAME]
    pairs += [(name, then.get(name), now.get(name)) for name in sorted((then.keys() | now.keys()) - may_differ)]
    for name, one, other in pairs:
        if one != other:
            raise ValueError(f"its {name} is {one!r} and not {other!r}")
    return points
