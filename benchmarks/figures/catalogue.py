"""All benchmark commands, with the question that each answers and its last results."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks.figures.markdown import make_table

COMMITS: Mapping[str, str] = MappingProxyType({"step": "b059860"})
"""Commits by the placeholders that results contain."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One command.

    Attributes:
        question: that it answers.
        command: its name after ``python -m benchmarks.``, and options; other commands begin with ``python``.
        results: the files of its last results, below ``benchmarks/results`` and without their suffix.
        minutes: duration of the command, if its results do not contain it; 0 if unknown.
        page: the document with all options of the command.
    """

    question: str
    command: str
    results: tuple[str, ...] = ()
    minutes: int = 0
    page: str = ""


def _read_catalogue() -> dict[str, list[Entry]]:
    sections = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
    return {
        name: [Entry(**{**each, "results": tuple(each.get("results", ()))}) for each in entries]
        for name, entries in sections.items()
    }


CATALOGUE: Mapping[str, Sequence[Entry]] = MappingProxyType(_read_catalogue())
"""The commands by the section of ``docs/measurements.md`` that contains them."""


def tabulate_commands(entries: Sequence[Entry], results: Mapping[str, Any]) -> str:
    """Returns a table of commands: their questions, and duration, machine and commit of their last results.

    Args:
        entries: the commands.
        results: all results, by name.
    """
    columns = ("<question", "<command", "minutes", "<machine", "<last result")
    return make_table(columns, [_list_cells(entry, results) for entry in entries])


def _list_cells(entry: Entry, results: Mapping[str, Any]) -> list[str]:
    command = f"[`{entry.command}`]({entry.page})" if entry.page else f"`{entry.command}`"
    found = [results[name] for name in entry.results]
    seconds = sum(each.get("seconds", 0.0) for each in found if isinstance(each.get("seconds", 0.0), float))
    minutes = math.ceil(seconds / 60) or entry.minutes
    machines = dict.fromkeys(_name_machine(each["environment"]) for each in found)
    links = [f"[`{name_commit(results[name])}`](../benchmarks/results/{name}.json)" for name in entry.results]
    return [entry.question, command, str(minutes or "—"), ", ".join(machines) or "any", ", ".join(links) or "printed"]


def _name_machine(environment: Mapping[str, Any]) -> str:
    gpu = str(environment.get("gpu") or "").removeprefix("NVIDIA ").partition(" ")[0]
    cpus = environment.get("cpus")
    return gpu or f"{cpus} CPU{'s' * (cpus != 1)}"


def name_commit(result: Mapping[str, Any]) -> str:
    """Returns the first digits of a result's commit, and whether files differed from it."""
    commit, _, changed = result["environment"]["commit"].partition("-")
    return COMMITS.get(commit, commit)[:7] + (" and changes" if changed else "")
