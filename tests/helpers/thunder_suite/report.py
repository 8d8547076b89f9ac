"""What came of a comparison, for people and as JSON."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from thunder_suite.compare import Difference
from thunder_suite.outcomes import Counts, Result, Run

_FAILED = ("failed", "error", "crashed", "timeout", "missing")
_LONGEST_LINE = 400


@dataclass(frozen=True)
class Comparison:
    """Two runs, and the tests that ended differently."""

    without: Run
    with_: Run
    differences: Sequence[Difference]

    @property
    def counts(self) -> Counts:
        """What fusioncache did in all tests."""
        return Counts.total(result.counts for result in self.with_.results.values())

    @property
    def against(self) -> list[Difference]:
        """The differences that fusioncache has to answer for."""
        return [difference for difference in self.differences if difference.counts_against]


def print_comparison(comparison: Comparison) -> None:
    """Each test whose outcome differs, then the bypasses, then the counts: of two, without and with fusioncache."""
    for difference in comparison.differences:
        click.echo(_text(difference))
    counts = comparison.counts
    for reason, number in sorted(counts.bypasses.items(), key=lambda item: -item[1]):
        click.echo(f"bypassed {number} times: {reason}")
    ids = sorted(comparison.without.results.keys() | comparison.with_.results.keys())
    for file, found in {**_by_file(ids), "all": ids}.items():
        click.echo(f"{file}: " + ", ".join(f"{name} {value}" for name, value in _row(comparison, found).items()))
    if not counts.regions:
        click.echo("fusioncache saw no region: this run says nothing about it")
    elif not counts.hits:
        click.echo("nothing was shared: no region of any test was equal to another")
    for name, run in (("without", comparison.without), ("with", comparison.with_)):
        if not run.finished:
            click.echo(f"the run {name} fusioncache was stopped at the time limit")


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Everything, ready for ``json.dumps``."""
    ids = sorted(comparison.without.results.keys() | comparison.with_.results.keys())
    without, with_ = comparison.without, comparison.with_
    return {
        "finished": {"without": without.finished, "with": with_.finished},
        "files": {file: _row(comparison, found) for file, found in _by_file(ids).items()},
        "total": _row(comparison, ids),
        "counts": asdict(comparison.counts),
        "differences": [_difference(difference) for difference in comparison.differences],
        "tests": {id_: _test(without.result(id_), with_.result(id_)) for id_ in ids},
    }


def _test(without: Result, with_: Result) -> dict[str, Any]:
    counts = {name: value for name, value in asdict(with_.counts).items() if value}
    seconds = [round(without.seconds, 2), round(with_.seconds, 2)]
    return {"without": without.outcome, "with": with_.outcome, "seconds": seconds} | counts


def _difference(difference: Difference) -> dict[str, Any]:
    return asdict(difference) | {"flaky": difference.flaky, "counts_against": difference.counts_against}


def _by_file(ids: Sequence[str]) -> dict[str, list[str]]:
    files: dict[str, list[str]] = {}
    for id_ in ids:
        files.setdefault(Path(id_.split("::")[0]).name, []).append(id_)
    return files


def _row(comparison: Comparison, ids: Sequence[str]) -> dict[str, Any]:
    """The counts of these tests. Where the two runs differ it takes two numbers, without and with fusioncache."""
    outcomes = [Counter(run.result(id_).outcome for id_ in ids) for run in (comparison.without, comparison.with_)]
    passed, failed, skipped, unreached = (
        [sum(one[outcome] for outcome in group) for one in outcomes]
        for group in (("passed",), _FAILED, ("skipped", "xfailed", "xpassed"), ("unreached",))
    )
    counts = Counts.total(comparison.with_.result(id_).counts for id_ in ids)
    return {
        "tests": len(ids),
        "passed": passed,
        "failed": failed,
        "skipped": skipped,
        "unreached": unreached,
        "calls": counts.calls,
        "regions": counts.regions,
        "hits": counts.hits,
        "bypasses": sum(counts.bypasses.values()),
        "differ": len({difference.id for difference in comparison.against} & set(ids)),
    }


def _text(difference: Difference) -> str:
    lines = [f"{difference.id}: {difference.without.outcome} without, {difference.with_.outcome} with fusioncache"]
    if difference.explained:
        lines[0] += f" (explained: {difference.explained})"
    if difference.reruns:
        pairs = ", ".join(f"{without}/{with_}" for without, with_ in difference.reruns)
        lines[0] += f" ({'flaky; ' if difference.flaky else ''}run again: {pairs})"
    for name, result in (("without", difference.without), ("with", difference.with_)):
        message = " ".join(result.message.split())
        if message:
            lines.append(f"    {name}: {message[:_LONGEST_LINE]}")
    return "\n".join(lines)
