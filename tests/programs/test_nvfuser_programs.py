"""Programs of what Thunder hands to nvFuser, in a second process: on a GPU with its kernels, else all but these."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import forked_processes as forks
import pytest
from repository import HELPERS, import_path

_ON_A_GPU = [pytest.param(("cuda", *more), marks=pytest.mark.gpu) for more in ((), ("--graphs",))]


def run_process(directory: Path, seed: int, arguments: tuple[str, ...], **variables: str) -> dict[str, Any]:
    """Three training steps in a process: on a GPU in one whose sets have an order of their own, else in a fork."""
    here = {"FUSIONCACHE_DIR": str(directory), "FUSIONCACHE_STORE": "1", **variables}
    if arguments == ("cpu",):
        return json.loads(forks.ask("nvfuser_steps", *arguments, **here).splitlines()[-1])
    environment = os.environ | {"PYTHONPATH": import_path(HELPERS), "PYTHONHASHSEED": str(seed)} | here
    command = [sys.executable, str(HELPERS / "nvfuser_steps.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("arguments", [("cpu",), *_ON_A_GPU], ids=" ".join)
def test_a_second_process_derives_nothing(arguments, tmp_path):
    pytest.importorskip("nvfuser_direct")
    first = run_process(tmp_path, 1, arguments)
    assert first["regions"] > 3 and not first["left"]
    assert (first["programs"], first["derived"]) == ([0, 1], 1)
    second = run_process(tmp_path, 2, arguments)
    assert (second["programs"], second["derived"]) == ([1, 0], 0)
    assert (second["regions"], second["digest"], second["left"]) == (first["regions"], first["digest"], {})
    if arguments[0] == "cuda":
        assert second["compiles"] == 0
    assert second["captures"] == first["captures"] == (2 if "--graphs" in arguments else 0)


@pytest.mark.gpu
def test_a_program_computes_on_a_gpu_what_thunder_computes_without_a_store(tmp_path):
    run_process(tmp_path, 1, ("cuda",))
    loaded = run_process(tmp_path, 2, ("cuda",))
    derived = run_process(tmp_path, 3, ("cuda",), FUSIONCACHE_STORE="0")
    assert (loaded["programs"], derived["programs"]) == ([1, 0], [0, 0])
    assert loaded["digest"] == derived["digest"]
