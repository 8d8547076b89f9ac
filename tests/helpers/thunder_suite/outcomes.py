"""What a run left behind: how each test ended, and what fusioncache did in it."""

from __future__ import annotations

import json
import platform
from collections import defaultdict
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

_WEIGHT = ("passed", "xpassed", "xfailed", "skipped", "failed", "error", "timeout", "crashed")


@dataclass(frozen=True)
class Result:
    """How a test ended, and what fusioncache did. A test without a result is missing, or unreached in a stopped run."""

    outcome: str
    message: str = ""
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """All results of one run of pytest, by test id, and whether it came to its end by itself."""

    results: dict[str, Result]
    finished: bool = True

    def result(self, id_: str) -> Result:
        return self.results.get(id_) or Result("missing" if self.finished else "unreached")


def load(file):
    """Reads what the plugin or ``write_record`` wrote; of setup, call and teardown that counts which weighs most."""
    events = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    run, by_id = Run({}, any("finished" in event for event in events)), defaultdict(list)
    for event in events:
        run.results.update({id_: run.result("") for id_ in event.get("collected", ())})
        run.results.update({id_: Result(ended) for id_, ended in event.get("recorded", {}).items()})
        if "id" in event:
            by_id[event["id"]].append(event)
    for id_, found in by_id.items():
        worst = max(found, key=lambda event: _WEIGHT.index(event["outcome"]))
        if worst["outcome"] != "passed" or any(event["when"] == "teardown" for event in found):
            run.results[id_] = Result(worst["outcome"], worst.get("message", ""), found[-1].get("counts", {}))
    return run


def write_record(file: Path, run: Run) -> None:
    """Writes how each test of a whole run ended, for ``load``, behind a line with what that depends on."""
    recorded = [{"recorded": {id_: result.outcome}} for id_, result in sorted(run.results.items())]
    events = [{"versions": find_versions()}, *recorded, {"finished": 0}]
    file.write_text("".join(json.dumps(event) + "\n" for event in events))


def is_up_to_date(file: Path) -> bool:
    with file.open() as lines:
        return bool(json.loads(next(lines))["versions"] == find_versions())


def find_versions() -> dict[str, str]:
    """Returns what the ends of Thunder's tests depend on besides fusioncache."""
    import torch

    versions = {name: version(name) for name in ("lightning-thunder", "torch", "litgpt")}
    return {**versions, "python": ".".join(platform.python_version_tuple()[:2]), "CUDA": str(torch.cuda.is_available())}
