"""Programs in other processes: nothing is interpreted, every bit is the same, whatever the seed and the directory."""

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

from fusioncache.store import Store
from fusioncache.store.slots import is_program


def run_zoo(store: Path, seed: int, helpers: Path, *arguments: str, verify: str = "0") -> list[dict[str, Any]]:
    """What processes print that train what is in ``program_zoo``."""
    environment = os.environ | {
        "PYTHONPATH": import_path(helpers),
        "PYTHONHASHSEED": str(seed),
        "FUSIONCACHE_VERIFY": verify,
    }
    command = [sys.executable, str(helpers / "program_zoo.py"), str(store), *arguments]
    done = subprocess.run(command, capture_output=True, env=environment, text=True, cwd=helpers, timeout=600)
    assert done.returncode == 0, done.stderr
    return list(map(json.loads, done.stdout.splitlines()))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    """A store, what the process did that filled it, and what another one did: elsewhere, with another seed."""
    folder = tmp_path_factory.mktemp("zoo")
    (first,) = run_zoo(folder / "store", 1, HELPERS)
    moved = shutil.copytree(HELPERS, folder / "elsewhere", ignore=shutil.ignore_patterns("__pycache__"))
    (second,) = run_zoo(folder / "store", 2, moved, "--loads")
    return folder / "store", first, second


@pytest.mark.parametrize("case", CASES)
def test_a_second_process_loads_all(trained, case):
    _, before, after = (each if isinstance(each, Path) else each[case] for each in trained)
    assert before.get("made") and not before["refused"] and not before["loaded"], before
    assert after == {**before, "loaded": before["made"], "made": 0}


def test_four_processes_at_once(trained, tmp_path):
    """They derive the same program at the same time: whoever comes first keeps it, and later processes load it."""
    done = run_zoo(tmp_path, 3, HELPERS, "--at-once", "4", "--cases", "module")
    assert [each["module"]["digest"] for each in done] == [trained[1]["module"]["digest"]] * 4
    assert not any(each["module"]["refused"] for each in done)
    assert any(each["module"]["made"] for each in done)
    (entry,) = [each for each in Store.open(tmp_path / "module").entries() if is_program(each.backend)]
    assert entry.backend == "program"
    for each in run_zoo(tmp_path, 4, HELPERS, "--at-once", "4", "--cases", "module", "--loads"):
        assert each["module"] == {**trained[1]["module"], "loaded": 1, "made": 0}


def test_verify_mode_derives_the_same_in_another_process(trained):
    """A difference would raise, and is what the case would say."""
    store, before, _ = trained
    cases = ("kinds_of_input", "tied", "thunderfx", "buffers")
    (after,) = run_zoo(store, 5, HELPERS, "--cases", *cases, verify="1")
    assert after == {case: {**before[case], "made": 0} for case in cases}
