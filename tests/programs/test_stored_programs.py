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

import forked_processes as forks
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
def test_a_second_process_loads_all_and_verify_mode_derives_the_same(found, case):
    before, after = (each[case] for each in found)
    assert before.get("made") and not before["refused"] and not before["loaded"], before
    assert after == {**before, "loaded": before["made"], "made": 0}
    if case in ("tied", "buffers"):
        assert found[1]["verified"][case] == {**before, "made": 0}


def test_programs_are_kept_whatever_others_did(tmp_path):
    """The later process does nothing of what is harmless."""
    for which, expected in (("all", [0, 1, {}]), ("lasting", [1, 0, {}])):
        found = json.loads(forks.ask("odd_models", which, str(tmp_path)).splitlines()[-1])
        assert {name: became for name, became in found.items() if became != expected} == {}
        assert len(found) > 10
