"""Results of runs: the outcome of each test, fusioncache's counts in it, and tests whose outcomes differ with it."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

_UNREACHED = "unreached"
"""The outcome of a test that a run did not reach."""


@dataclass(frozen=True)
class Result:
    """Outcome of a test and fusioncache's counts. A test without a result is missing, or unreached in a stopped run."""

    outcome: str
    message: str = ""
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """All results of one run of pytest, by test id, and whether the run was complete."""

    results: dict[str, Result]
    finished: bool = True

    def result(self, id_: str) -> Result:
        return self.results.get(id_) or Result("missing" if self.finished else _UNREACHED)


@dataclass
class Difference:
    """A test whose outcomes differ, the reason if it must differ, and the outcomes of later runs of both."""

    id: str
    without: Result
    with_: Result
    explained: str
    reruns: list[tuple[str, str]] = field(default_factory=list)

    @property
    def counts_against(self) -> bool:
        """True if it differs for no known reason, and in more than half of its further runs as well."""
        differing = sum(without != with_ for without, with_ in self.reruns)
        return not self.explained and (not self.reruns or 2 * differing > len(self.reruns))

    def add_rerun(self, runs: Sequence[Run]) -> None:
        without, with_ = (run.result(self.id).outcome for run in runs)
        if _UNREACHED not in (without, with_):
            self.reruns.append((without, with_))


def find_differences(runs: Sequence[Run], explained: Mapping[str, str]) -> list[Difference]:
    found = []
    for id_ in sorted(runs[0].results.keys() | runs[1].results.keys()):
        one, other = (run.result(id_) for run in runs)
        if one.outcome != other.outcome and _UNREACHED not in (one.outcome, other.outcome):
            reasons = (reason for pattern, reason in explained.items() if re.search(pattern, id_))
            found.append(Difference(id_, one, other, next(reasons, "")))
    return found


def load(file: Path) -> Run:
    """Returns the run that the plugin or ``write_record`` wrote; the later of two outcomes of a test counts."""
    events = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    results = {event.pop("id"): Result(**event) for event in events if "id" in event}
    return Run(results, any("finished" in event for event in events))


def write_record(file: Path, run: Run) -> None:
    """Writes the outcomes of a whole run, for ``load``, after a line with the versions that they depend on."""
    ends = [{"id": id_, "outcome": result.outcome} for id_, result in sorted(run.results.items())]
    events = [{"versions": find_versions()}, *ends, {"finished": 0}]
    file.write_text("".join(json.dumps(event) + "\n" for event in events))


def find_versions() -> dict[str, str]:
    """Returns the versions that outcomes of Thunder's tests depend on besides fusioncache, and if CUDA is available."""
    import torch

    versions = {name: version(name) for name in ("lightning-thunder", "torch", "litgpt")}
    return {**versions, "python": ".".join(platform.python_version_tuple()[:2]), "CUDA": str(torch.cuda.is_available())}
