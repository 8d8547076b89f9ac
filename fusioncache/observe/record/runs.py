"""A run: one cache of one process, and what people call it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import PurePath

from fusioncache.observe.record.observations import Phases
from fusioncache.observe.record.stats import Stats

SEPARATOR = " · "
_MOST_MODELS = 2


@dataclass(frozen=True, slots=True)
class Run:
    """One cache of one process.

    Attributes:
        id: of the run.
        started: seconds since the epoch.
        pid: process that ran it.
        command: its command line.
        stats: its counts when it was last saved.
        phases: where its seconds had gone by then.
        unrecorded: how many regions, streams, templates and executables of it the record had no room for.
        models: classes of the modules, or names of the functions, that it compiled.
        updated: when it was last saved, in seconds since the epoch.
        ended: whether its process came to an end by itself. If not, it goes on, or it was killed.
    """

    id: str
    started: float
    pid: int
    command: str
    stats: Stats
    phases: Phases = field(default_factory=Phases)
    unrecorded: int = 0
    models: tuple[str, ...] = ()
    updated: float = 0.0
    ended: bool = False

    @property
    def why_without_regions(self) -> str:
        """What to say of the run if it has no region."""
        loaded = "Its programs were loaded, so that nothing was traced"
        otherwise = loaded if self.stats.programs_loaded else "Thunder found nothing to fuse in what it traced"
        return ". ".join(self.stats.bypasses) or otherwise

    @property
    def missing(self) -> str:
        """What to say of the run if the record had no room for all of it; empty if it had."""
        if not self.unrecorded:
            return ""
        return f"{self.unrecorded} regions, streams, templates and executables: counted, but the record had no room"

    @property
    def name(self) -> str:
        """What people call the run, such as ``train.py · GPT · 2026-01-31 14:03``."""
        return format_run_name(self.command, self.models, self.started)


def format_run_name(command: str, models: Sequence[str], started: float, *, today: float | None = None) -> str:
    """Returns a run's name, such as ``train.py · GPT · 2026-01-31 14:03``, in local time.

    Args:
        command: its command line.
        models: that it compiled.
        started: seconds since the epoch.
        today: a moment of a day; the name of a run that started on that day lacks the day. None names every day.
    """
    parts = (find_script(command), _format_models(models), _format_moment(started, today))
    return SEPARATOR.join(part for part in parts if part)


def find_script(command: str) -> str:
    """Returns what a command line runs, in a word or two: a script, a module, or Python itself."""
    try:
        first = next(iter(shlex.split(command)), "")
    except ValueError:
        first = command
    if first == "-c":
        return "python -c"
    path = PurePath(first)
    if path.name == "ipykernel_launcher.py":
        return "notebook"
    return (path.parent.name if path.name == "__main__.py" else path.name) or "python"


def find_whole_models(models: Sequence[str]) -> tuple[str, ...]:
    """Returns the names of models, each once: with ``thunderfx`` a model has many parts, as ``GPT (part 1 of 11)``."""
    return tuple(dict.fromkeys(model.partition(" (")[0] for model in models))


def _format_models(models: Sequence[str]) -> str:
    whole = find_whole_models(models)
    first = ", ".join(whole[:_MOST_MODELS])
    return first if len(whole) <= _MOST_MODELS else f"{first} and {len(whole) - _MOST_MODELS} more"


def _format_moment(started: float, today: float | None) -> str:
    moment = datetime.fromtimestamp(started)
    if today is not None and moment.date() == datetime.fromtimestamp(today).date():
        return f"{moment:%H:%M}"
    return f"{moment:%Y-%m-%d %H:%M}"
