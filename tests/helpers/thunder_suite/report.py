"""What came of a comparison, for people and as JSON."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from benchmarks.common.runner import console
from thunder_suite.compare import Difference
from thunder_suite.outcomes import Counts, Result, Run

_FAILED = ("failed", "error", "crashed", "timeout", "missing")
_COLUMNS = ("tests", "passed", "failed", "skipped", "unreached", "regions", "hits", "bypasses", "differ")
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
    """A table with a line for each file, then each test whose outcome differs, then the bypasses."""
    out = console()
    out.print(_table(comparison))
    for difference in comparison.differences:
        out.print(escape(_text(difference)), soft_wrap=True)
    counts = comparison.counts
    for reason, number in sorted(counts.bypasses.items(), key=lambda item: -item[1]):
        out.print(escape(f"bypassed {number} times: {reason}"), soft_wrap=True)
    if not counts.regions:
        out.print("fusioncache saw no region: this run says nothing about it")
    elif not counts.hits:
        out.print("nothing was shared: no region of any test was equal to another")
    for name, run in (("without", comparison.without), ("with", comparison.with_)):
        if not run.finished:
            out.print(f"the run {name} fusioncache was stopped at the time limit")


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


def _table(comparison: Comparison) -> Table:
    caption = "a / b: without / with fusioncache, where these differ"
    table = Table(title="Thunder's tests", caption=caption, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("file", no_wrap=True)
    for name in _COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    ids = sorted(comparison.without.results.keys() | comparison.with_.results.keys())
    for file, found in _by_file(ids).items():
        table.add_row(file.removeprefix("test_").removesuffix(".py"), *_cells(_row(comparison, found)))
    table.add_section()
    table.add_row("all", *_cells(_row(comparison, ids)))
    return table


def _cells(row: dict[str, Any]) -> list[str]:
    def cell(value: Any) -> str:
        if not isinstance(value, list):
            return str(value)
        return str(value[0]) if value[0] == value[1] else f"{value[0]} / {value[1]}"

    return [cell(row[name]) for name in _COLUMNS]


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
