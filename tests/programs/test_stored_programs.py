"""Programs in other processes: nothing is interpreted, every bit is the same, whatever the seed and the directory.

What processes keep at once is in ``test_candidates.py``.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from program_zoo import CASES
from repository import HELPERS, import_path


def run_zoo(seed: int, helpers: Path, *arguments: str) -> dict[str, Any]:
    """Returns what a process found that trains what is in ``program_zoo``."""
    environment = os.environ | {"PYTHONPATH": import_path(helpers), "PYTHONHASHSEED": str(seed)}
    command = [sys.executable, str(helpers / "program_zoo.py"), *arguments]
    done = subprocess.run(command, capture_output=True, env=environment, text=True, cwd=helpers)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What the process did that filled a store, and what another one did over that: elsewhere, with another seed."""
    folder = tmp_path_factory.mktemp("zoo")
    store = str(folder / "store")
    moved = folder / "elsewhere"
    shutil.copytree(HELPERS, moved, ignore=shutil.ignore_patterns("__pycache__"))
    return [run_zoo(1, HELPERS, store), run_zoo(2, moved, store, "load")]


@pytest.mark.parametrize("case", CASES)
def test_a_second_process_loads_all(found, case):
    before, after = (each[case] for each in found)
    assert before.get("made") and not before["refused"] and not before["loaded"], before
    assert after == {**before, "loaded": before["made"], "made": 0}


def test_verify_mode_derives_the_same_in_another_process(found):
    """A difference would raise, and is what the case would say."""
    made, loaded = found
    assert loaded["verified"] == {case: {**made[case], "made": 0} for case in ("tied", "buffers")}
