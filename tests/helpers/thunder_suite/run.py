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

sys.path[:0] = _FOLDERS = [str(Path(__file__).resolve().parents[number]) for number in (3, 1)]

from thunder_suite.explained import EXPLAINED  # noqa: E402
from thunder_suite.outcomes import Difference, Run, find_differences, load, write_record  # noqa: E402
from thunder_suite.plugin import VARIABLE  # noqa: E402
from thunder_suite.suites import SUITES  # noqa: E402

_FILE = click.Path(path_type=Path, exists=True)
_SPARE = 10.0  # seconds of the time limit for all that is not running tests


@dataclass(frozen=True)
class Runner:
    """Runs pytest on Thunder's tests. Without ``jobs`` they run in pytest's own process, which a crash then ends."""

    selections: Mapping[str, tuple[str, int]]
    backend: str
    jobs: int
    directory: Path

    def run(self, name: str, end: float, only: Sequence[str]) -> Run:
        """Runs all tests or these ids until ``end``; with fusioncache if ``name`` begins with ``fusioncache``."""
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
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        found = load(results)
        click.echo(f"{name}: {len(found.results)} tests in {time.monotonic() - started:.0f} s", err=True)
        return found

    def _list_words(self, only: Sequence[str]) -> list[str]:
        spec = find_spec("thunder")  # without importing Thunder, which takes seconds
        tests = Path(spec.submodule_search_locations[0], "tests")
        files = sorted({Path(id_.split("::")[0]).name for id_ in only}) or self.selections
        command = [sys.executable, "-m", "pytest", "-c", os.devnull, f"--rootdir={tests.parents[1]}"]
        command += ["-p", "no:cacheprovider", "-p", "thunder_suite.plugin"]
        command += ["-q", "--tb=short", "--disable-warnings", "--benchmark-disable", "--continue-on-collection-errors"]
        command += ["-n", str(self.jobs), "--max-worker-restart=500"]
        command += ["--timeout=300", "--timeout-method=signal"] if find_spec("pytest_timeout") else []
        return command + [str(tests / file) for file in files]

    def _make_environment(self, name: str) -> dict[str, str]:
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
        environment = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", **inherited, VARIABLE: f"{self.directory}/{name}.json"}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (*_FOLDERS, os.environ.get("PYTHONPATH"))))
        for variable in ("FUSIONCACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):  # neither warms the other
            environment[variable] = str(self.directory / f"{name}-{variable.lower()}")
        return environment


def _choose_backend() -> str:
    import torch

    return "auto" if torch.cuda.is_available() else "eager"


@click.command(context_settings={"show_default": True}, help=__doc__)
@click.option("--suite", type=click.Choice(list(SUITES)), default="cpu", help="Which tests, see suites.py.")
@click.option("--only", type=_FILE, help="Run no others than this file has, which --record wrote.")
@click.option("--jobs", type=click.IntRange(min=0), default=os.cpu_count(), help="Processes; 0: no worker.")
@click.option("--time-limit", type=click.FloatRange(min=30), default=3600.0, help="Seconds for everything.")
@click.option("--reruns", type=click.IntRange(min=0), default=3, help="Of a test that ends differently.")
@click.option("--backend", type=click.Choice(["auto", "nvfuser", "inductor", "eager"]), default=_choose_backend)
@click.option("--without", type=_FILE, help="What --record wrote, in place of a run.")
@click.option("--record", type=click.Path(path_type=Path), help="Write how tests ended, for --without.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the result.")
@click.option("--directory", type=click.Path(path_type=Path), help="Keep logs and results here.  [default: a new one]")
def main(only: Any, without: Any, record: Any, json_file: Any, directory: Any, **options: Any) -> None:
    started, limit = time.monotonic(), options["time_limit"] - _SPARE
    end = started + limit
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that pytest is ended too
    directory = (directory or Path(mkdtemp(prefix="thunder-suite-"))).resolve()
    directory.mkdir(parents=True, exist_ok=True)
    runner = Runner(SUITES[options["suite"]], options["backend"], options["jobs"], directory)
    ids = list(load(only).results) if only else []
    runs = [load(without) if without else runner.run("thunder", started + limit * 0.45, ids)]
    runs.append(runner.run("fusioncache", end, ids))
    found = find_differences(runs, EXPLAINED)
    unexplained = [each for each in found if not each.explained]
    for number in range(options["reruns"] if unexplained else 0):
        if time.monotonic() < end:
            ids = [each.id for each in unexplained]
            again = [runner.run(f"{name}-{number}", end, ids) for name in ("thunder", "fusioncache")]
            for each in unexplained:
                each.add_rerun(again)
    if record and runs[0].finished:
        write_record(record, runs[0])
    result = _sum_up(runs, found)
    click.echo(f"{json.dumps(result, indent=1)}\nlogs are in {directory}")
    if json_file:
        from benchmarks.common.environment import describe

        said = options | {"files": runner.selections, "without": "an earlier run" if without else "this run"}
        json_file.write_text(json.dumps({"environment": describe() | {"options": said}, **result}, indent=1) + "\n")
    sys.exit(bool(result["total"]["differ"]) or not result["counts"]["regions"])


def _sum_up(runs: Sequence[Run], found: Sequence[Difference]) -> dict[str, Any]:
    ids = runs[0].results.keys() | runs[1].results.keys()
    without, with_ = (Counter(run.result(id_).outcome for id_ in ids) for run in runs)
    differ = sum(each.counts_against for each in found)
    return {
        "finished": {"without": runs[0].finished, "with": runs[1].finished},
        "total": {"tests": len(ids), "without": without, "with": with_, "differ": differ},
        "counts": sum((Counter(each.counts) for each in runs[1].results.values()), Counter()),
        "differences": [asdict(each) | {"counts_against": each.counts_against} for each in found],
    }


if __name__ == "__main__":
    main()
