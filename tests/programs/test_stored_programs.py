"""Programs in other processes: nothing is interpreted, every bit is the same, whatever the seed and the directory.

Two processes start, each with a seed of its own, and fork whatever has done nothing yet: importing torch and Thunder
takes most of the time. What processes keep at once is in ``test_candidates.py``.
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

VERIFIED = ("tied", "buffers")


def run_jobs(seed: int, helpers: Path, *jobs: Job) -> list[dict[str, Any]]:
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
def made(folder: Path) -> dict[str, Any]:
    """What the process did that filled a store."""
    (found,) = run_jobs(1, HELPERS, Job(str(folder / "store")))
    return found


@pytest.fixture(scope="module")
def loaded(made: Any, folder: Path) -> list[dict[str, Any]]:
    """What another one did over that: elsewhere, with another seed; and what one did that derived all anew."""
    moved = shutil.copytree(HELPERS, folder / "elsewhere", ignore=shutil.ignore_patterns("__pycache__"))
    store = str(folder / "store")
    return run_jobs(2, moved, Job(store, loads=True), Job(store, VERIFIED, verify=True))


@pytest.mark.parametrize("case", CASES)
def test_a_second_process_loads_all(made, loaded, case):
    before, after = made[case], loaded[0][case]
    assert before.get("made") and not before["refused"] and not before["loaded"], before
    assert after == {**before, "loaded": before["made"], "made": 0}


def test_verify_mode_derives_the_same_in_another_process(made, loaded):
    """A difference would raise, and is what the case would say."""
    assert loaded[1] == {case: {**made[case], "made": 0} for case in VERIFIED}
