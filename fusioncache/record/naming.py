"""What people call a run: its script, its models and when it started."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import datetime
from pathlib import PurePath

SEPARATOR = " · "
_MOST_MODELS = 2


def run_name(command: str, models: Sequence[str], started: float, *, today: float | None = None) -> str:
    """A run's name, such as ``train.py · GPT · 2026-01-31 14:03``, in local time.

    Args:
        command: its command line.
        models: that it compiled.
        started: seconds since the epoch.
        today: a moment of a day; a run that started on that day is named without it. None names every day.
    """
    return SEPARATOR.join(part for part in (script_name(command), _models(models), _moment(started, today)) if part)


def script_name(command: str) -> str:
    """What was run, in a word or two: a script, a module, or Python itself."""
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


def _models(models: Sequence[str]) -> str:
    shown = ", ".join(models[:_MOST_MODELS])
    return shown if len(models) <= _MOST_MODELS else f"{shown} and {len(models) - _MOST_MODELS} more"


def _moment(started: float, today: float | None) -> str:
    moment = datetime.fromtimestamp(started)
    if today is not None and moment.date() == datetime.fromtimestamp(today).date():
        return f"{moment:%H:%M}"
    return f"{moment:%Y-%m-%d %H:%M}"
