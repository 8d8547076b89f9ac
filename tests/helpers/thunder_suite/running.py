"""Runs pytest on Thunder's tests in a process group of its own, until it ends or time is up."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from repository import HELPERS, ROOT

from thunder_suite.outcomes import Run, load
from thunder_suite.settings import VARIABLE, Settings

_GRACE = 5.0  # seconds for pytest to end by itself once it is told to


@dataclass(frozen=True)
class How:
    """What all runs have in common.

    Attributes:
        jobs: processes that run tests; 0 for pytest's own, which a test that crashes then ends.
        keyword: pytest's ``-k``.
        timeout: seconds for one test.
        directory: for logs and results.
    """

    jobs: int
    keyword: str
    timeout: int
    directory: Path


def folder_of_tests() -> Path:
    """Where Thunder's tests are, without importing Thunder, which takes seconds."""
    spec = find_spec("thunder")
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError("there is no package thunder here")
    return Path(spec.submodule_search_locations[0], "tests")


def run(name: str, files: Sequence[str], settings: Settings, how: How, seconds: float) -> Run:
    """One run of pytest. Its log is ``NAME.log`` in the directory of ``how``.

    Args:
        name: of the run.
        files: names of test files.
        settings: for the plugins.
        how: what all runs have in common.
        seconds: when to stop it.
    """
    settings.write(how.directory / f"{name}.json")
    with (how.directory / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            _command(files, how),
            cwd=how.directory,  # some tests leave files where they are run
            env=_environment(how.directory, name),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            process.wait(max(seconds, 0))
        except subprocess.TimeoutExpired:
            pass
        finally:
            _end(process)
    return load(Path(settings.results))


def _command(files: Sequence[str], how: How) -> list[str]:
    tests = folder_of_tests()
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, f"--rootdir={tests.parents[1]}"]
    command += ["-p", "no:cacheprovider", "-p", "thunder_suite.recording", "-p", "thunder_suite.inject"]
    command += ["-q", "--tb=short", "--disable-warnings", "--benchmark-disable", "--continue-on-collection-errors"]
    command += ["-n", str(how.jobs), *(["--max-worker-restart=500"] if how.jobs else [])]
    command += [f"--timeout={how.timeout}", "--timeout-method=signal"] if find_spec("pytest_timeout") else []
    command += ["-k", how.keyword] if how.keyword else []
    return command + [str(tests / file) for file in files]


def _environment(directory: Path, name: str) -> dict[str, str]:
    paths = [str(ROOT), str(HELPERS), *filter(None, [os.environ.get("PYTHONPATH")])]
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    environment = {**inherited, "PYTHONPATH": os.pathsep.join(paths), VARIABLE: str(directory / f"{name}.json")}
    environment.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    for variable in ("FUSIONCACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):  # neither run warms the other
        environment[variable] = str(directory / f"{name}-{variable.lower()}")
    return environment


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the process with all that it started."""
    if process.poll() is None:
        _signal(process, signal.SIGTERM)
        end = time.monotonic() + _GRACE
        while process.poll() is None and time.monotonic() < end:
            time.sleep(0.1)
    _signal(process, signal.SIGKILL)  # workers that outlive it
    process.wait()


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return
