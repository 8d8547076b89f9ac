"""What a run left behind: how each test ended, and what fusioncache did in it."""

from __future__ import annotations

import json
import platform
import re
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

_CRASH = re.compile(r"worker '[^']*' crashed while running")
_FATAL = re.compile(r"Timeout.*>\s*[\d.]+s")


@dataclass(frozen=True)
class Result:
    """How a test ended.

    ``outcome`` is one of passed, failed, error, skipped, xfailed, xpassed, crashed (the process died), timeout,
    missing (it was to run, and no result came), unreached (the run was stopped before). ``counts`` says what
    fusioncache did.
    """

    outcome: str
    message: str = ""
    seconds: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """All results of one run of pytest, by test id.

    Attributes:
        finished: whether pytest came to its end by itself.
    """

    results: dict[str, Result]
    finished: bool = True

    def result(self, id_: str) -> Result:
        """A test's result. One that never got as far as a result is missing, or unreached in a run that was stopped."""
        return self.results.get(id_) or Result("missing" if self.finished else "unreached")


def load(file: Path) -> Run:
    """Reads what the plugin or ``write_record`` wrote."""
    events = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    by_id: dict[str, list[dict[str, Any]]] = {}
    collected: list[str] = []
    for event in events:
        collected += event.get("collected", ())
        if "id" in event:
            by_id.setdefault(event["id"], []).append(event)
    finished = any("finished" in event for event in events)
    nothing = Result("missing" if finished else "unreached")
    results = {id_: _result(found, nothing) for id_, found in by_id.items()}
    results |= {id_: Result(ended) for event in events for id_, ended in event.get("recorded", {}).items()}
    for id_ in collected:
        results.setdefault(id_, nothing)
    return Run(results, finished)


def write_record(file: Path, run: Run) -> None:
    """Writes how each test of a whole run ended, for ``load``, behind a line with what that depends on."""
    recorded = [{"recorded": {id_: result.outcome}} for id_, result in sorted(run.results.items())]
    events = [{"versions": find_versions()}, *recorded, {"finished": 0}]
    file.write_text("".join(json.dumps(event) + "\n" for event in events))


def is_up_to_date(file: Path) -> bool:
    """True if a record was made with the versions of today."""
    with file.open() as lines:
        return bool(json.loads(next(lines))["versions"] == find_versions())


def find_versions() -> dict[str, str]:
    """Returns what the ends of Thunder's tests depend on besides fusioncache."""
    import torch

    versions = {name: version(name) for name in ("lightning-thunder", "torch", "litgpt")}
    return {**versions, "python": ".".join(platform.python_version_tuple()[:2]), "CUDA": str(torch.cuda.is_available())}


def _result(events: list[dict[str, Any]], nothing: Result) -> Result:
    """The outcome that weighs most among a test's setup, call and teardown; ``nothing`` if it broke off in between."""
    worst = max(events, key=lambda event: _WEIGHT.index(_outcome(event)))
    outcome = _outcome(worst)
    if outcome == "passed" and all(event["when"] != "teardown" for event in events):
        return nothing
    seconds = sum(event.get("seconds", 0.0) for event in events)
    return Result(outcome, worst.get("message", ""), seconds, events[-1].get("counts", {}))


_WEIGHT = ("passed", "xpassed", "xfailed", "skipped", "failed", "error", "timeout", "crashed")


def _outcome(event: dict[str, Any]) -> str:
    if event["outcome"] == "failed":
        message = event.get("message", "")
        if _CRASH.search(message):
            return "crashed"
        if _FATAL.search(message):
            return "timeout"
        return "failed" if event["when"] == "call" else "error"
    if event.get("xfail"):
        return "xfailed" if event["outcome"] == "skipped" else "xpassed"
    return str(event["outcome"])
