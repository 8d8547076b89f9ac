"""Runs a benchmark: processes in turn, medians, one result with its environment, and a table.

A result is one JSON object: ``schema``; ``environment`` (machine, versions, commit and the ``options`` of the run);
``points``; ``seconds`` that the run took; ``notes``, if there are any; and further items of the benchmark. A point
begins with the fields that identify it. Measurements follow, or ``error`` and the end of the process's ``log``.
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
from benchmarks.common.processes import ProcessFailed, print_progress

SCHEMA = 1
_WIDTH = 200
_PACKAGES = ("benchmarks", "fusioncache", "litgpt", "nvfuser_direct", "thunder", "torch", "transformers", "triton")
_FOLDERS = re.compile(rf"(?<![\w.])(/[\w.+-]+)+/(?=({'|'.join(_PACKAGES)})/)")

Point = dict[str, Any]
"""A point as it is in the JSON."""

Columns = Mapping[str, Callable[[Point], Any]]
"""Columns of a table: functions from a point to a cell. A column whose name starts with ``<`` is left-aligned."""


@dataclass(slots=True)
class Run:
    """A run of a benchmark.

    Attributes:
        machine: that it runs on.
        options: of the run, as in the JSON.
        file: for the result; None for none.
        limit: seconds for all processes; None for no limit.
        points: the points so far.
        notes: lines on skipped measurements, with the reason, and on differences.
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
        """Returns the seconds left of the limit; None without a limit."""
        return None if self.limit is None else self.limit - (time.monotonic() - self._begun)

    def measure(self, identity: Point, target: str | Path, argument: Any, **where: Any) -> Point:
        """Returns a point: its identifying fields, and the result of a function in its own process, or ``error``.

        Args:
            identity: the fields that identify the point.
            target: as for ``processes.call``.
            argument: of the function.
            where: further arguments of ``processes.call``.
        """
        left = self.time_left()
        if left is not None and left <= 0:
            return {**identity, "error": "not run: there was no time left"}
        if left is not None:
            where["limit"] = min(left, where.get("limit") or left)
        try:
            found = processes.call(target, argument, **where)
        except ProcessFailed as failure:
            return describe_failure(identity, failure)
        return {**identity, **found}

    def add(self, *points: Point) -> None:
        """Adds points to the result, and writes the result."""
        self.points += points
        self.save()

    def save(self) -> None:
        """Writes the result, if there is a file for it."""
        more = {**self.more, **({"notes": self.notes} if self.notes else {})}
        more["seconds"] = round(time.monotonic() - self._begun, 1)
        write_result(self.file, make_result(self.machine.environment, self.options, points=self.points, **more))

    def finish(self, title: str, columns: Columns, caption: str | None = None) -> NoReturn:
        """Prints all points, failures and notes; exits with code 1 if a point failed or is not correct."""
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
        json_file: for the result.
        options: of the run. The backend and the device are added.
        backend: that the user requested.
        limit: seconds for all processes.

    Raises:
        click.UsageError: if the backend does not work here.
    """
    machine = inspect_machine(backend)
    return Run(machine, {**options, "backend": machine.backend, "device": machine.device}, json_file, limit)


def benchmark(
    doc: str | None, *backends: str, needs_litgpt: bool = False
) -> Callable[[Callable[..., None]], click.Command]:
    """Returns a decorator that makes a function a command. The function gets a run and the command's other options.

    The command has ``--backend`` and ``--json``. The result contains the other options, except paths. ``limit_option``
    sets the limit of the run.

    Args:
        doc: a module's docstring, which is the help.
        backends: the choices of ``--backend``; by default all. A single one is used without an option.
        needs_litgpt: whether to exit with an error if litgpt is not installed.
    """

    def decorate(main: Callable[..., None]) -> click.Command:
        @wraps(main)
        def start(json_file: Path | None, backend: str = "auto", limit: float | None = None, **options: Any) -> None:
            if needs_litgpt:
                require_litgpt("this benchmark")
            requested = backends[0] if len(backends) == 1 else backend
            noted = {name: value for name, value in options.items() if not _has_path(value)}
            main(begin(json_file, noted, requested, limit=limit), **options)

        with_json: Callable[..., None] = json_option(start)
        return command(doc)(with_json if len(backends) == 1 else backend_option(*backends)(with_json))

    return decorate


def _has_path(value: Any) -> bool:
    return any(isinstance(each, Path) for each in (value if isinstance(value, tuple) else (value,)))


def describe_failure(identity: Point, failure: ProcessFailed) -> Point:
    """Returns the point of a process that failed, and prints the failure."""
    print_progress(f"{name_point(identity)}: {failure.format_message()}\n")
    return {**identity, "error": failure.message, "log": failure.log}


def make_result(environment: Mapping[str, Any], options: Mapping[str, Any], **found: Any) -> dict[str, Any]:
    """Returns the JSON of a benchmark: schema, environment with the options, and results."""
    return {"schema": SCHEMA, "environment": {**environment, "options": options}, **found}


def write_result(file: Path | None, result: Mapping[str, Any]) -> None:
    """Writes the JSON, if there is a file for it."""
    if file:
        # Atomically, so that the last result stays intact if this process is ended while it writes.
        part = file.with_name(file.name + ".part")
        part.write_text(drop_folders(json.dumps(result, indent=1)) + "\n")
        part.replace(file)


def drop_folders(text: str) -> str:
    """Returns a text in which paths of packages' files are relative to the import path."""
    return _FOLDERS.sub("", text)


def take_turns[Item](items: Sequence[Item], rounds: int) -> Iterator[Item]:
    """Yields all items in each round, reversed in every second one: a machine that slows down then affects all."""
    for number in range(rounds):
        yield from items if number % 2 == 0 else reversed(items)


def find_medians(found: Sequence[Mapping[str, float | None]]) -> dict[str, Any]:
    """Returns the median of each figure over the processes that have it; None if no process has it."""
    names = dict.fromkeys(name for each in found for name in each)
    values = {name: [value for each in found if (value := each.get(name)) is not None] for name in names}
    return {name: median(each) if each else None for name, each in values.items()}


def is_wrong(point: Mapping[str, Any]) -> bool:
    """True if a point has no result, or one that is not correct."""
    return "error" in point or point.get("correct") is False


def name_point(point: Mapping[str, Any]) -> str:
    """Returns a name for a point: the identifying fields at its beginning, as text."""
    words = []
    for name, value in point.items():
        if name == "error" or not (value is None or isinstance(value, str | int)):
            break
        words.append(value if isinstance(value, str) else f"{name} {value}")
    return ", ".join(words)


def console() -> Console:
    """Returns a console for standard output, wide enough for a table if it is not a terminal."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=_WIDTH)


def print_line(text: str) -> None:
    """Prints a line verbatim, without wrapping."""
    console().print(escape(text), soft_wrap=True)


def print_points(title: str, points: Sequence[Point], columns: Columns, caption: str | None = None) -> None:
    """Prints a table of the points that have a result, then the errors."""
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
    """Returns a column: the value at a path in a point. Floats are scaled, and have this number of digits."""

    def cell(point: Point) -> str | None:
        value: Any = point
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        if isinstance(value, float):
            return f"{scale * value:.{digits}f}"
        return None if value is None else str(value)

    return cell
