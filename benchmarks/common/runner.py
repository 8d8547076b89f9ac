"""Runs a benchmark: processes, turns, medians, one result with its environment, and a table.

A result is one JSON object: ``schema``; ``environment``, which is machine, versions, commit and the ``options`` of the
run; ``points``; ``seconds`` that the run took; ``notes``, if there are any; and whatever else a benchmark adds. A point
says what it is about, then what was measured, or ``error``, with the end of the process's ``log``.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from statistics import median
from typing import Any, NoReturn

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.common import processes
from benchmarks.common.environment import Machine, inspect_machine
from benchmarks.common.options import backend_option, command, json_option, require_litgpt
from benchmarks.common.processes import ProcessFailed, say

SCHEMA = 1
_WIDTH = 200
_PACKAGES = ("benchmarks", "fusioncache", "litgpt", "nvfuser_direct", "thunder", "torch", "transformers", "triton")
_FOLDERS = re.compile(rf"(?<![\w.])(/[\w.+-]+)+/(?=({'|'.join(_PACKAGES)})/)")

Point = dict[str, Any]
"""A point as it is in the JSON."""

Columns = Mapping[str, Callable[[Point], Any]]
"""What each column of a table says of a point. One whose name starts with ``<`` is set flush left."""


@dataclass(slots=True)
class Run:
    """A run of a benchmark.

    Attributes:
        machine: what it runs on.
        options: of the run, as in the JSON.
        file: that gets the result; None for none.
        limit: seconds for all processes; None for any.
        points: what was found so far.
        notes: what was left out, and why; what differed.
        more: further parts of the result.
    """

    machine: Machine
    options: Mapping[str, Any]
    file: Path | None = None
    limit: float | None = None
    points: list[Point] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    more: dict[str, Any] = field(default_factory=dict)
    _begun: float = field(default_factory=lambda: time.monotonic())

    def time_left(self) -> float | None:
        """Returns the seconds that are left of the limit; None without one."""
        return None if self.limit is None else self.limit - (time.monotonic() - self._begun)

    def ask(self, about: Point, target: str | Path, argument: Any, **where: Any) -> Point:
        """Returns a point: what it is about, and what a function said in its process, or ``error``.

        Args:
            about: what tells the point from others.
            target: as for ``processes.call``, as all others.
            argument: of the function.
            where: further arguments of ``processes.call``.
        """
        left = self.time_left()
        if left is not None and left <= 0:
            return {**about, "error": "not run: there was no time left"}
        if left is not None:
            where["limit"] = min(left, where.get("limit") or left)
        try:
            found = processes.call(target, argument, **where)
        except ProcessFailed as failure:
            return describe_failure(about, failure)
        return {**about, **found}

    def keep(self, *points: Point) -> None:
        """Adds points to the result, and writes it."""
        self.points += points
        self.save()

    def save(self) -> None:
        """Writes the result, if a file is asked for."""
        more = {**self.more, **({"notes": self.notes} if self.notes else {})}
        more["seconds"] = round(time.monotonic() - self._begun, 1)
        write_result(self.file, make_result(self.machine.environment, self.options, points=self.points, **more))

    def finish(self, title: str, columns: Columns, caption: str | None = None) -> NoReturn:
        """Prints all points, what failed and the notes; ends with 1 if a point failed, or is not correct."""
        self.save()
        print_points(title, self.points, columns, caption)
        for note in self.notes:
            print_line(note)
        sys.exit(1 if any(map(is_wrong, self.points)) else 0)


def begin(
    json_file: Path | None, options: Mapping[str, Any], backend: str = "auto", *, limit: float | None = None
) -> Run:
    """Returns a run on this machine.

    Args:
        json_file: that gets the result.
        options: of the run. The backend and the device are added.
        backend: that is asked for.
        limit: seconds for all processes.

    Raises:
        click.UsageError: if the backend does not work here.
    """
    machine = inspect_machine(backend)
    return Run(machine, {**options, "backend": machine.backend, "device": machine.device}, json_file, limit)


def benchmark(
    doc: str | None, *backends: str, needs_litgpt: bool = False
) -> Callable[[Callable[..., None]], click.Command]:
    """Makes a function a command with ``--backend`` and ``--json``, which is given a run and all other options.

    The result has these options, but for paths. With ``limit_option`` the run has that limit.

    Args:
        doc: a module's documentation, which is the help.
        backends: that may be asked for, all unless some are named. A single one is taken without an option.
        needs_litgpt: whether it is refused where litgpt is not installed.
    """

    def decorate(main: Callable[..., None]) -> click.Command:
        @wraps(main)
        def start(json_file: Path | None, backend: str = "auto", limit: float | None = None, **options: Any) -> None:
            if needs_litgpt:
                require_litgpt("this benchmark")
            asked = backends[0] if len(backends) == 1 else backend
            noted = {name: value for name, value in options.items() if not _has_path(value)}
            main(begin(json_file, noted, asked, limit=limit), **options)

        with_json: Callable[..., None] = json_option(start)
        return command(doc)(with_json if len(backends) == 1 else backend_option(*backends)(with_json))

    return decorate


def _has_path(value: Any) -> bool:
    return any(isinstance(each, Path) for each in (value if isinstance(value, tuple) else (value,)))


def describe_failure(about: Point, failure: ProcessFailed) -> Point:
    """Returns the point of a process that failed, and says that it did."""
    say(f"{name_point(about)}: {failure.format_message()}\n")
    return {**about, "error": failure.message, "log": failure.log}


def make_result(environment: Mapping[str, Any], options: Mapping[str, Any], **found: Any) -> dict[str, Any]:
    """Returns the JSON of a benchmark: on what it ran, with which options, and what it found."""
    return {"schema": SCHEMA, "environment": {**environment, "options": options}, **found}


def write_result(file: Path | None, result: Mapping[str, Any]) -> None:
    """Writes the JSON if a file is asked for."""
    if file:
        # In one go, so that ending this process while it writes leaves the last result whole.
        part = file.with_name(file.name + ".part")
        part.write_text(drop_folders(json.dumps(result, indent=1)) + "\n")
        part.replace(file)


def drop_folders(text: str) -> str:
    """Returns a text in which files of packages are named from where Python imports them."""
    return _FOLDERS.sub("", text)


def take_turns[Item](items: Sequence[Item], rounds: int) -> Iterator[Item]:
    """Yields all items in each round, in every second one backwards: a machine that slows down does so for all."""
    for number in range(rounds):
        yield from items if number % 2 == 0 else reversed(items)


def find_medians(found: Sequence[Mapping[str, float | None]]) -> dict[str, Any]:
    """Returns the median of each figure over the processes that have it; None for one that none of them has."""
    names = dict.fromkeys(name for each in found for name in each)
    values = {name: [value for each in found if (value := each.get(name)) is not None] for name in names}
    return {name: median(each) if each else None for name, each in values.items()}


def is_wrong(point: Mapping[str, Any]) -> bool:
    """Returns whether a point has no result, or one that is not correct."""
    return "error" in point or point.get("correct") is False


def name_point(point: Mapping[str, Any]) -> str:
    """Returns what a point is about, in words: what comes first in it."""
    words = []
    for name, value in point.items():
        if name == "error" or not (value is None or isinstance(value, str | int)):
            break
        words.append(value if isinstance(value, str) else f"{name} {value}")
    return ", ".join(words)


def console() -> Console:
    """Returns the standard output, wide enough for a table where it is no terminal."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=_WIDTH)


def print_line(text: str) -> None:
    """Prints a line as it is, however long."""
    console().print(escape(text), soft_wrap=True)


def print_points(title: str, points: Sequence[Point], columns: Columns, caption: str | None = None) -> None:
    """Prints a table of the points that have a result, then what is wrong with the others."""
    good = [point for point in points if "error" not in point]
    print_table(title, columns, [[cell(point) for cell in columns.values()] for point in good], caption)
    for point in points:
        if "error" in point:
            print_line(f"error: {name_point(point)}: {point['error']}")
        elif is_wrong(point):
            print_line(f"error: {name_point(point)}: it is not correct")


def print_table(title: str, columns: Iterable[str], rows: Iterable[Sequence[Any]], caption: str | None = None) -> None:
    """Prints a table. A cell that is None is empty."""
    table = Table(title=title, caption=caption, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in columns:
        flush_left = name.startswith("<")
        table.add_column(name.removeprefix("<"), justify="left" if flush_left else "right")
    for row in rows:
        table.add_row(*("" if cell is None else str(cell) for cell in row))
    console().print(table)


def pick(*path: str, scale: float = 1.0, digits: int = 2) -> Callable[[Point], str | None]:
    """Returns a column: the value at the end of a path in a point; a number that is no count has so many digits."""

    def cell(point: Point) -> str | None:
        value: Any = point
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        if isinstance(value, float):
            return f"{scale * value:.{digits}f}"
        return None if value is None else str(value)

    return cell
