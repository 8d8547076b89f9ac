"""Programs in other processes: nothing is interpreted and all bits are equal, for any hash seed and directory.

``test_candidates.py`` tests programs that processes store at the same time.
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

ZOO = "program_zoo.py"
_ON_A_GPU = [pytest.param(("cuda", *more), marks=pytest.mark.gpu) for more in ((), ("--graphs",))]


def run_script(script: Path, seed: int, *arguments: str, **variables: str) -> dict[str, Any]:
    """Returns the result of a process with this hash seed, which determines the order of sets."""
    environment = os.environ | {"PYTHONPATH": import_path(script.parent), "PYTHONHASHSEED": str(seed)} | variables
    command = [sys.executable, str(script), *arguments]
    done = subprocess.run(command, capture_output=True, env=environment, text=True, cwd=script.parent)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Returns the results of a process that fills a store, and of one that uses it elsewhere with another seed."""
    folder = tmp_path_factory.mktemp("zoo")
    store = str(folder / "store")
    moved = folder / "elsewhere"
    shutil.copytree(HELPERS, moved, ignore=shutil.ignore_patterns("__pycache__"))
    return [run_script(HELPERS / ZOO, 1, store), run_script(moved / ZOO, 2, store, "load")]


@pytest.mark.parametrize("case", CASES)
def test_a_second_process_loads_all_and_verify_mode_derives_the_same(found, case):
    before, after = (each[case] for each in found)
    assert before.get("made") and not before["refused"] and not before["loaded"], before
    assert after == {**before, "loaded": before["made"], "made": 0}
    if case in ("tied", "buffers"):
        assert found[1]["verified"][case] == {**before, "made": 0}


def test_programs_are_kept_whatever_others_did_but_for_code_in_thunders_tables(tmp_path):
    """The later process does none of the harmless actions."""
    for which, expected in (("all", [0, 1, {}]), ("lasting", [1, 0, {}])):
        found = json.loads(forks.read_output("odd_models", which, str(tmp_path)).splitlines()[-1])
        assert len(found) > 10
        for name in ("register_operations", "replace_for_good"):
            *kept, reasons = found.pop(name)
            assert kept == [0, 0] and all("Thunder may run __main__." in reason for reason in reasons) and reasons
        assert {name: became for name, became in found.items() if became != expected} == {}


def take_steps(directory: Path, seed: int, arguments: tuple[str, ...], **variables: str) -> dict[str, Any]:
    """Takes three training steps with nvFuser: with its kernels on a GPU, else without them in a fork."""
    here = {"FUSIONCACHE_DIR": str(directory), "FUSIONCACHE_STORE": "1", **variables}
    if arguments == ("cpu",):
        return json.loads(forks.read_output("nvfuser_steps", *arguments, **here).splitlines()[-1])
    return run_script(HELPERS / "nvfuser_steps.py", seed, *arguments, **here)


@pytest.mark.parametrize("arguments", [("cpu",), *_ON_A_GPU], ids=" ".join)
def test_a_second_process_derives_nothing(arguments, tmp_path):
    pytest.importorskip("nvfuser_direct")
    first = take_steps(tmp_path, 1, arguments)
    assert first["regions"] > 3 and not first["left"]
    assert (first["programs"], first["derived"]) == ([0, 1], 1)
    second = take_steps(tmp_path, 2, arguments)
    assert (second["programs"], second["derived"]) == ([1, 0], 0)
    assert (second["regions"], second["digest"], second["left"]) == (first["regions"], first["digest"], {})
    if arguments[0] == "cuda":
        assert second["compiles"] == 0
    assert second["captures"] == first["captures"] == (2 if "--graphs" in arguments else 0)


@pytest.mark.gpu
def test_a_program_computes_on_a_gpu_what_thunder_computes_without_a_store(tmp_path):
    take_steps(tmp_path, 1, ("cuda",))
    loaded = take_steps(tmp_path, 2, ("cuda",))
    derived = take_steps(tmp_path, 3, ("cuda",), FUSIONCACHE_STORE="0")
    assert (loaded["programs"], derived["programs"]) == ([1, 0], [0, 0])
    assert loaded["digest"] == derived["digest"]
