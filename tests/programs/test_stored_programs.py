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
from repository import HELPERS


def start(store: Path, seed: int, helpers: Path, *arguments: str) -> subprocess.Popen[str]:
    """Starts a process that trains what is in ``program_zoo``."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(helpers), os.environ.get("PYTHONPATH", "")]),
        "PYTHONHASHSEED": str(seed),
        "FUSIONCACHE_STORE": "1",
    }
    command = [sys.executable, str(helpers / "program_zoo.py"), str(store), *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True, cwd=helpers)


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    output, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    return json.loads(output.splitlines()[-1])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    """A store, what the process did that filled it, and what another one did: elsewhere, with another seed."""
    folder = tmp_path_factory.mktemp("zoo")
    first = finish(start(folder / "store", 1, HELPERS))
    moved = shutil.copytree(HELPERS, folder / "elsewhere", ignore=shutil.ignore_patterns("__pycache__"))
    return folder / "store", first, finish(start(folder / "store", 2, moved, "--loads"))


@pytest.mark.parametrize("case", CASES)
def test_a_second_process_loads_all(trained, case):
    _, before, after = (each if isinstance(each, Path) else each[case] for each in trained)
    assert before.get("made") and not before["refused"] and not before["loaded"], before
    assert after == {**before, "loaded": before["made"], "made": 0}


def test_eight_processes_at_once(trained, tmp_path):
    """They derive the same programs at the same time: whoever comes first keeps it, and the next process loads."""
    store, cases = tmp_path / "store", ("module", "function")
    processes = [start(store, seed, HELPERS, "--cases", *cases) for seed in range(8)]
    done = [finish(process) for process in processes]
    expected = [trained[1][case]["digest"] for case in cases]
    assert [[each[case]["digest"] for case in cases] for each in done] == [expected] * 8
    assert not any(each[case]["refused"] for each in done for case in cases)
    last = finish(start(store, 9, HELPERS, "--cases", *cases, "--loads"))
    assert [last[case]["made"] for case in cases] == [0, 0]
