"""Later steps wait for nothing of ours: for no lock that others may hold, no disk, compiler, log or collector."""

import json
import os
import subprocess
import sys

import forked_processes as forks
import pytest
from repository import HELPERS, import_path


def check_steps(tmp_path, backend, sizes):
    """Asserts that nothing interrupts later steps of a separate process, see ``watched_steps.py``."""
    output = tmp_path / "steps.log"
    command = [sys.executable, "-m", "watched_steps", backend, json.dumps(sizes)]
    environment = {**os.environ, "FUSIONCACHE_DIR": str(tmp_path / "own"), "PYTHONPATH": import_path(HELPERS)}
    environment.pop("FUSIONCACHE_STORE", None)
    with output.open("w") as file:
        run = subprocess.run if backend == "nvfuser" else forks.run  # a process that uses a GPU cannot be forked
        code = run(command, cwd=HELPERS, env=environment, stdout=file, stderr=file).returncode
    text = output.read_text()
    assert code == 0, text
    (found,) = (line for line in text.splitlines() if line.startswith("{"))  # libraries may print at exit
    found = json.loads(found)
    assert found["locks"] > 10
    # For "same": nothing was compiled, loaded, traced or counted.
    assert {**found, "locks": 0} == {"events": {}, "locks": 0, "free": True, "garbage": 0, "same": True}


def test_nothing_comes_in_between(tmp_path):
    """At more sizes than are tried in turn."""
    check_steps(tmp_path, "eager", [2, 3, 4, 5, 6])


@pytest.mark.gpu
def test_nothing_comes_in_between_on_a_gpu(tmp_path):
    for _ in ("compiled here", "loaded"):
        check_steps(tmp_path, "nvfuser", [2, 3])
