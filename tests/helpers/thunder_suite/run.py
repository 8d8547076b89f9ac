"""Runs Thunder's own tests without and with fusioncache, and compares how each of them ends.

Exits with 1 if a test ends differently and nothing in ``explained.py`` says that it has to, and if fusioncache saw no
region at all.
"""

import contextlib
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

_ROOT, _HELPERS = (str(Path(__file__).resolve().parents[number]) for number in (3, 1))
sys.path[:0] = [_ROOT, _HELPERS]

from thunder_suite.compare import again, differences  # noqa: E402
from thunder_suite.explained import EXPLAINED  # noqa: E402
from thunder_suite.outcomes import Run, load, write_record  # noqa: E402
from thunder_suite.plugin import VARIABLE  # noqa: E402
from thunder_suite.suites import SUITES, Selection  # noqa: E402

_SPARE = 10.0  # seconds of the time limit for all that is not running tests
_GRACE = 5.0  # seconds for pytest to end by itself once it is told to
_LONGEST_LINE = 400


@dataclass(frozen=True)
class Runner:
    """Runs pytest on Thunder's tests. Without ``jobs`` they run in pytest's own process, which a crash then ends."""

    selections: Mapping[str, Selection]
    backend: str
    jobs: int
    directory: Path

    def run(self, name: str, end: float, only: Sequence[str] = ()) -> Run:
        """Runs all tests or those with these ids, until a time of the clock; with fusioncache if the name begins so."""
        started, results = time.monotonic(), self.directory / f"{name}.jsonl"
        inject = self.backend if name.startswith("fusioncache") else None
        settings = {"results": str(results), "inject": inject, "selections": self.selections, "only": list(only)}
        (self.directory / f"{name}.json").write_text(json.dumps(settings))
        with (self.directory / f"{name}.log").open("wb") as log:
            where = {"cwd": self.directory, "env": self._make_environment(name), "start_new_session": True}
            words, nothing = self._list_words(only), subprocess.DEVNULL
            process = subprocess.Popen(words, stdin=nothing, stdout=log, stderr=log, **where)
            try:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(end - started, 0))
            finally:
                _end(process)
        found = load(results)
        click.echo(f"{name}: {len(found.results)} tests in {time.monotonic() - started:.0f} s", err=True)
        return found

    def _list_words(self, only: Sequence[str]) -> list[str]:
        spec = find_spec("thunder")  # without importing Thunder, which takes seconds
        tests = Path(spec.submodule_search_locations[0], "tests")
        files = sorted({Path(id_.split("::")[0]).name for id_ in only}) if only else self.selections
        jobs = min(self.jobs, len(only)) if only else self.jobs
        command = [sys.executable, "-m", "pytest", "-c", os.devnull, f"--rootdir={tests.parents[1]}"]
        command += ["-p", "no:cacheprovider", "-p", "thunder_suite.plugin"]
        command += ["-q", "--tb=short", "--disable-warnings", "--benchmark-disable", "--continue-on-collection-errors"]
        command += ["-n", str(jobs), *(["--max-worker-restart=500"] if jobs else [])]
        command += ["--timeout=300", "--timeout-method=signal"] if find_spec("pytest_timeout") else []
        return command + [str(tests / file) for file in files]

    def _make_environment(self, name):
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
        environment = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", **inherited, VARIABLE: f"{self.directory}/{name}.json"}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (_ROOT, _HELPERS, os.environ.get("PYTHONPATH"))))
        for variable in ("FUSIONCACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):  # neither warms the other
            environment[variable] = str(self.directory / f"{name}-{variable.lower()}")
        return environment


def _end(process):
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            if number == signal.SIGKILL or process.poll() is None:
                os.killpg(process.pid, number)
                process.wait(_GRACE)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


def _sum_up(runs, found):
    """Returns how many tests ended how, without and with fusioncache."""
    ids = runs[0].results.keys() | runs[1].results.keys()
    without, with_ = (Counter(run.result(id_).outcome for id_ in ids) for run in runs)
    return {"tests": len(ids), "without": without, "with": with_, "differ": sum(each.counts_against for each in found)}


def _describe(difference):
    line = f"{difference.id}: {difference.explained or 'not explained'}, run again: {difference.reruns}"
    ends = (("without", difference.without), ("with fusioncache", difference.with_))
    shown = [f"    {name}: {end.outcome} {' '.join(end.message.split())[:_LONGEST_LINE]}" for name, end in ends]
    return "\n".join([line, *shown])


def _compare(runner, end, reruns, record):
    """Returns both runs, and the tests that ended differently, which run again as long as there is time."""
    now = time.monotonic()
    without = load(record) if record else runner.run("thunder", now + (end - now) * 0.45)
    with_ = runner.run("fusioncache", end)
    numbers = iter(range(1, reruns + 1))

    def rerun(ids: list[str]) -> tuple[Run, Run] | None:
        if time.monotonic() >= end:
            return None
        number = next(numbers)
        return runner.run(f"thunder-{number}", end, ids), runner.run(f"fusioncache-{number}", end, ids)

    return (without, with_), again(differences(without, with_, EXPLAINED), rerun, reruns)


def _choose_backend() -> str:
    import torch

    return "auto" if torch.cuda.is_available() else "eager"


@click.command(context_settings={"show_default": True}, help=__doc__)
@click.option("--suite", type=click.Choice(list(SUITES)), default="cpu", help="Which tests, see suites.py.")
@click.option("--jobs", type=click.IntRange(min=0), default=os.cpu_count(), help="Processes; 0: no worker.")
@click.option("--time-limit", type=click.FloatRange(min=30), default=3600.0, help="Seconds for everything.")
@click.option("--reruns", type=click.IntRange(min=0), default=3, help="Of a test that ends differently.")
@click.option("--backend", type=click.Choice(["auto", "nvfuser", "inductor", "eager"]), default=_choose_backend)
@click.option("--without", type=click.Path(path_type=Path, exists=True), help="What --record wrote, in place of a run.")
@click.option("--record", type=click.Path(path_type=Path), help="Write how tests ended, for --without.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the result.")
@click.option("--directory", type=click.Path(path_type=Path), help="Keep logs and results here.  [default: a new one]")
def main(
    suite: str,
    time_limit: float,
    reruns: int,
    without: Any,
    record: Any,
    json_file: Any,
    directory: Any,
    **options: Any,
) -> None:
    end = time.monotonic() + time_limit - _SPARE
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that pytest is ended too
    directory = (directory or Path(mkdtemp(prefix="thunder-suite-"))).resolve()
    directory.mkdir(parents=True, exist_ok=True)
    runs, found = _compare(Runner(SUITES[suite], directory=directory, **options), end, reruns, without)
    counts, total = sum((Counter(each.counts) for each in runs[1].results.values()), Counter()), _sum_up(runs, found)
    finished = {"without": runs[0].finished, "with": runs[1].finished}
    for difference in found:
        click.echo(_describe(difference))
    for name, number in counts.most_common():
        click.echo(f"{number} times {name}" if name.startswith("bypassed: ") else f"{name} {number}")
    click.echo(", ".join(f"{name} {value}" for name, value in total.items()))
    click.echo(f"came to their ends: {finished}; logs are in {directory}")
    if record and finished["without"]:
        write_record(record, runs[0])
    if json_file:
        from benchmarks.common.environment import describe

        said = options | {"suite": suite, "files": SUITES[suite], "reruns": reruns, "time_limit": time_limit}
        environment = describe() | {"options": said | {"without": "an earlier run" if without else "this run"}}
        listed = [asdict(each) | {"counts_against": each.counts_against} for each in found]
        result = {"environment": environment, "finished": finished, "total": total, "counts": counts}
        json_file.write_text(json.dumps({**result, "differences": listed}, indent=1) + "\n")
    sys.exit(bool(total["differ"]) or not counts["regions"])


if __name__ == "__main__":
    main()
