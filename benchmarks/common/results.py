"""What a benchmark found so far, what it says of its progress, and the JSON that it leaves."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click

SCHEMA = 1

Point = dict[str, Any]
"""A point as it is in the JSON: its options, and what was measured; or ``error``."""


@dataclass(slots=True)
class Outcome:
    """What is known so far.

    Attributes:
        points: in the order in which they were run.
        notes: what was left out, and why; what differed.
    """

    points: list[Point] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        """Whether a point has no result, or a wrong one."""
        return any(is_wrong(point) for point in self.points)

    def note(self, text: str) -> None:
        """Adds a note, and says it."""
        self.notes.append(text)
        say(f"{text}\n")


def is_wrong(point: Mapping[str, Any]) -> bool:
    """Returns whether a point has no result, or one that is not correct."""
    return "error" in point or point.get("correct") is False


def say(text: str) -> None:
    """Tells the person who waits of progress: a line, or the beginning of one."""
    click.echo(text, err=True, nl=False)


def make_result(environment: Mapping[str, Any], options: Mapping[str, Any], **found: Any) -> dict[str, Any]:
    """Returns the JSON of a benchmark: on what it ran, with which options, and what it found."""
    return {"schema": SCHEMA, "environment": {**environment, "options": options}, **found}


def write_result(file: Path | None, result: Mapping[str, Any]) -> None:
    """Writes the JSON if a file is asked for."""
    if file:
        # In one go, so that whoever ends this process while it writes finds the last result whole.
        part = file.with_name(file.name + ".part")
        part.write_text(json.dumps(result, indent=1) + "\n")
        part.replace(file)


def plan_options(plan: Any, without: Iterable[str]) -> dict[str, Any]:
    """Returns the options of a run: those of its plan, and those that the specs of all its points have in common.

    Args:
        plan: a dataclass with a ``spec``.
        without: fields of the spec that differ from point to point.
    """
    options = asdict(plan)
    common = options.pop("spec")
    return {name: value for name, value in common.items() if name not in without} | options
