"""Runs Thunder's own tests without and with fusioncache, and compares how each of them ends.

Exits with 1 if a test ends differently and nothing in ``explained.py`` says that it has to, and if fusioncache saw no
region at all.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import click

_ROOT = Path(__file__).resolve().parents[3]
_HELPERS = _ROOT / "tests" / "helpers"
sys.path[:0] = [str(_ROOT), str(_HELPERS)]

from thunder_suite.compare import Difference, again, differences  # noqa: E402
from thunder_suite.explained import EXPLAINED  # noqa: E402
from thunder_suite.outcomes import Run, load, write_record  # noqa: E402
from thunder_suite.plugin import VARIABLE  # noqa: E402
from thunder_suite.suites import SUITES, Selection  # noqa: E402

_SPARE = 10.0  # seconds of the time limit for all that is not running tests
_GRACE = 5.0  # seconds for pytest to end by itself once it is told to
_LONGEST_LINE = 400
_GROUPS = {
    "passed": ("passed",),
    "failed": ("failed", "error", "crashed", "timeout", "missing"),
    "skipped": ("skipped", "xfailed", "xpassed"),
    "unreached": ("unreached",),
}


@dataclass(frozen=True)
class Runner:
    """Runs pytest on Thunder's tests.

    Attributes:
        selections: what to select of each file.
        backend: of fusioncache.
        jobs: processes that run tests; 0 for pytest's own, which a test that crashes then ends.
        keyword: pytest's ``-k``.
        timeout: seconds for one test.
        directory: for logs and results.
    """

    selections: Mapping[str, Selection]
    backend: str
    jobs: int
    keyword: str
    timeout: int
    directory: Path

    def run(self, name: str, end: float, only: Sequence[str] = ()) -> Run:
        """Runs all tests or those with these ids, until a time of the monotonic clock.

        Its log is ``NAME.log``. With fusioncache if the name begins so.
        """
        started, results = time.monotonic(), self.directory / f"{name}.jsonl"
        settings = {
            "results": str(results),
            "inject": self.backend if name.startswith("fusioncache") else None,
            "selections": self.selections,
            "only": list(only),
        }
        (self.directory / f"{name}.json").write_text(json.dumps(settings))
        with (self.directory / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                self._list_words(only),
                cwd=self.directory,  # some tests leave files where they are run
                env=self._make_environment(name),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            try:
                process.wait(max(end - started, 0))
            except subprocess.TimeoutExpired:
                pass
            finally:
                _end(process)
        found = load(results)
        click.echo(f"{name}: {len(found.results)} tests in {time.monotonic() - started:.0f} s", err=True)
        return found

    def _list_words(self, only: Sequence[str]) -> list[str]:
        spec = find_spec("thunder")  # without importing Thunder, which takes seconds
        assert spec is not None and spec.submodule_search_locations, "there is no package thunder here"
        tests = Path(spec.submodule_search_locations[0], "tests")
        files = sorted({Path(id_.split("::")[0]).name for id_ in only}) if only else self.selections
        jobs = min(self.jobs, len(only)) if only else self.jobs
        command = [sys.executable, "-m", "pytest", "-c", os.devnull, f"--rootdir={tests.parents[1]}"]
        command += ["-p", "no:cacheprovider", "-p", "thunder_suite.plugin", "-k", self.keyword]
        command += ["-q", "--tb=short", "--disable-warnings", "--benchmark-disable", "--continue-on-collection-errors"]
        command += ["-n", str(jobs), *(["--max-worker-restart=500"] if jobs else [])]
        command += [f"--timeout={self.timeout}", "--timeout-method=signal"] if find_spec("pytest_timeout") else []
        return command + [str(tests / file) for file in files]

    def _make_environment(self, name: str) -> dict[str, str]:
        paths = [str(_ROOT), str(_HELPERS), *filter(None, [os.environ.get("PYTHONPATH")])]
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
        environment = {**inherited, "PYTHONPATH": os.pathsep.join(paths), VARIABLE: f"{self.directory}/{name}.json"}
        environment.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        for variable in ("FUSIONCACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):  # neither warms the other
            environment[variable] = str(self.directory / f"{name}-{variable.lower()}")
        return environment


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the process with all that it started, also workers that outlive it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            if number == signal.SIGKILL or process.poll() is None:
                os.killpg(process.pid, number)
                process.wait(_GRACE)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


@dataclass(frozen=True)
class Comparison:
    """Two runs, and the tests that ended differently."""

    without: Run
    with_: Run
    differences: Sequence[Difference]

    @property
    def ids(self) -> list[str]:
        """Of all tests."""
        return sorted(self.without.results.keys() | self.with_.results.keys())

    @property
    def against(self) -> list[Difference]:
        """The differences that fusioncache has to answer for."""
        return [difference for difference in self.differences if difference.counts_against]

    def count(self) -> Counter[str]:
        """Returns what fusioncache did in all tests."""
        return sum((Counter(result.counts) for result in self.with_.results.values()), Counter())

    def sum_up(self) -> dict[str, Any]:
        """Returns how many tests ended how: two numbers each, without and with fusioncache."""
        runs = [[run.result(id_).outcome for id_ in self.ids] for run in (self.without, self.with_)]
        ends = {name: [sum(end in group for end in ends) for ends in runs] for name, group in _GROUPS.items()}
        return {"tests": len(self.ids), **ends, "differ": len(self.against)}

    def print(self) -> None:
        """Prints the tests whose outcomes differ, the counts, and what they do not say."""
        for difference in self.differences:
            click.echo(_describe(difference))
        counts = self.count()
        for name, number in counts.most_common():
            click.echo(f"{number} times {name}" if name.startswith("bypassed: ") else f"{name} {number}")
        click.echo(", ".join(f"{name} {value}" for name, value in self.sum_up().items()))
        if not counts["hits"]:
            click.echo("nothing was shared: no region of any test was equal to another")
        for name, run in (("without", self.without), ("with", self.with_)):
            if not run.finished:
                click.echo(f"the run {name} fusioncache was stopped at the time limit")

    def to_dict(self) -> dict[str, Any]:
        """Returns everything, ready for ``json.dumps``."""
        return {
            "finished": {"without": self.without.finished, "with": self.with_.finished},
            "total": self.sum_up(),
            "counts": self.count(),
            "differences": [asdict(each) | {"counts_against": each.counts_against} for each in self.differences],
            "tests": {
                id_: {"without": asdict(self.without.result(id_)), "with": asdict(self.with_.result(id_))}
                for id_ in self.ids
            },
        }


def _describe(difference: Difference) -> str:
    line = f"{difference.id}: {difference.without.outcome} without, {difference.with_.outcome} with fusioncache"
    line += f" (explained: {difference.explained})" if difference.explained else ""
    if difference.reruns:
        pairs = ", ".join(f"{without}/{with_}" for without, with_ in difference.reruns)
        line += f" ({'flaky; ' if difference.flaky else ''}run again: {pairs})"
    messages = {"without": difference.without.message, "with": difference.with_.message}
    shown = [f"    {name}: {' '.join(text.split())[:_LONGEST_LINE]}" for name, text in messages.items() if text]
    return "\n".join([line, *shown])


def _compare(runner: Runner, end: float, reruns: int, record: Path | None) -> Comparison:
    """Runs both, and again the tests that ended differently, as long as there is time."""
    now = time.monotonic()
    without = load(record) if record else runner.run("thunder", now + (end - now) * 0.45)
    with_ = runner.run("fusioncache", end)
    numbers = iter(range(1, reruns + 1))

    def rerun(ids: list[str]) -> tuple[Run, Run] | None:
        if time.monotonic() >= end:
            return None
        number = next(numbers)
        return runner.run(f"thunder-{number}", end, ids), runner.run(f"fusioncache-{number}", end, ids)

    return Comparison(without, with_, again(differences(without, with_, EXPLAINED), rerun, reruns))


def _choose_backend() -> str:
    import torch

    return "auto" if torch.cuda.is_available() else "eager"


@click.command(context_settings={"show_default": True}, help=__doc__)
@click.option("--suite", type=click.Choice(list(SUITES)), default="cpu", help="Which tests, see suites.py.")
@click.option("-k", "keyword", default="", help="As for pytest.")
@click.option("--jobs", type=click.IntRange(min=0), default=os.cpu_count(), help="Processes; 0: no worker.")
@click.option("--time-limit", type=click.FloatRange(min=30), default=3600.0, help="Seconds for everything.")
@click.option("--timeout", type=click.IntRange(min=1), default=300, help="Seconds for one test.")
@click.option("--reruns", type=click.IntRange(min=0), default=3, help="Of a test that ends differently.")
@click.option("--backend", type=click.Choice(["auto", "nvfuser", "inductor", "eager"]), default=_choose_backend)
@click.option(
    "--without",
    type=click.Path(path_type=Path, exists=True),
    metavar="FILE",
    help="Take the run without fusioncache from an earlier one, on the same kind of machine: thunder.jsonl in its "
    "directory, or what --record wrote.",
)
@click.option("--record", type=click.Path(path_type=Path), help="Write how tests ended, for --without.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the result.")
@click.option("--directory", type=click.Path(path_type=Path), help="Keep logs and results here.  [default: a new one]")
def main(
    suite: str,
    time_limit: float,
    reruns: int,
    without: Path | None,
    record: Path | None,
    json_file: Path | None,
    directory: Path | None,
    **options: Any,
) -> None:
    end = time.monotonic() + time_limit - _SPARE
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that pytest is ended too
    directory = (directory or Path(mkdtemp(prefix="thunder-suite-"))).resolve()
    directory.mkdir(parents=True, exist_ok=True)
    comparison = _compare(Runner(SUITES[suite], directory=directory, **options), end, reruns, without)
    comparison.print()
    if record and comparison.without.finished:
        write_record(record, comparison.without)
    if json_file:
        from benchmarks.common.environment import describe

        said = options | {"suite": suite, "files": SUITES[suite], "reruns": reruns, "time_limit": time_limit}
        environment = describe() | {"options": said | {"without": "an earlier run" if without else "this run"}}
        json_file.write_text(json.dumps({"environment": environment} | comparison.to_dict(), indent=1) + "\n")
    if comparison.against:
        click.echo(f"{len(comparison.against)} tests end differently; logs are in {directory}")
    sys.exit(bool(comparison.against) or not comparison.count()["regions"])


if __name__ == "__main__":
    main()
