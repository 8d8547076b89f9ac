"""Programs in other processes: nothing is interpreted, every bit is the same, whatever the seed and the directory.

Two processes start, each with a seed of its own, and fork whatever has done nothing yet: importing torch and Thunder
takes most of the time.
"""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from program_zoo import CASES, Job
from repository import HELPERS, import_path

from fusioncache.store import Store
from fusioncache.store.entry import is_program

VERIFIED = ("kinds_of_input", "tied", "buffers")


def run_jobs(seed: int, helpers: Path, *jobs: Job) -> list[list[dict[str, Any]]]:
    """Returns what processes found that train what is in ``program_zoo``."""
    environment = os.environ | {"PYTHONPATH": import_path(helpers), "PYTHONHASHSEED": str(seed)}
    command = [sys.executable, str(helpers / "program_zoo.py"), json.dumps(list(map(asdict, jobs)))]
    done = subprocess.run(command, capture_output=True, env=environment, text=True, cwd=helpers)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("zoo")


@pytest.fixture(scope="module")
def made(folder: Path) -> list[list[dict[str, Any]]]:
    """What the process did that filled a store, and four at once over another one."""
    at_once = Job(str(folder / "at once"), ("module",), processes=4)
    return run_jobs(1, HELPERS, Job(str(folder / "store")), at_once)


@pytest.fixture(scope="module")
def entries(made: Any, folder: Path) -> list[str]:
    """The programs that the four left."""
    return [each.backend for each in Store.open(folder / "at once" / "module").entries() if is_program(each.backend)]


@pytest.fixture(scope="module")
def loaded(made: Any, entries: Any, folder: Path) -> list[list[dict[str, Any]]]:
    """What others did over these: elsewhere, with another seed; and what one did that derived all anew."""
    moved = shutil.copytree(HELPERS, folder / "elsewhere", ignore=shutil.ignore_patterns("__pycache__"))
    store, at_once = str(folder / "store"), Job(str(folder / "at once"), ("module",), loads=True, processes=4)
    return run_jobs(2, moved, Job(store, loads=True), at_once, Job(store, VERIFIED, verify=True))


@pytest.mark.parametrize("case", CASES)
def test_a_second_process_loads_all(made, loaded, case):
    before, after = made[0][0][case], loaded[0][0][case]
    assert before.get("made") and not before["refused"] and not before["loaded"], before
    assert after == {**before, "loaded": before["made"], "made": 0}


def test_four_processes_at_once(made, entries, loaded):
    """They derive the same program at the same time: whoever comes first keeps it, and later processes load it."""
    ((alone,), at_once), later = made, loaded[1]
    assert [each["module"]["digest"] for each in at_once] == [alone["module"]["digest"]] * 4
    assert not any(each["module"]["refused"] for each in at_once)
    assert any(each["module"]["made"] for each in at_once)
    assert entries == ["program"]
    assert [each["module"] for each in later] == [{**alone["module"], "loaded": 1, "made": 0}] * 4


def test_verify_mode_derives_the_same_in_another_process(made, loaded):
    """A difference would raise, and is what the case would say."""
    ((before,), _), (_, _, (after,)) = made, loaded
    assert after == {case: {**before[case], "made": 0} for case in VERIFIED}
