"""Paths of the parts of the repository."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "fusioncache"
HELPERS = ROOT / "tests" / "helpers"
DOCS = ROOT / "docs"
README = ROOT / "README.md"


def import_path(*folders: Path | str) -> str:
    """Returns a ``PYTHONPATH`` of these folders and all that this process imports from."""
    return os.pathsep.join([*map(str, folders), *filter(None, sys.path)])


def run_code(code: str, *arguments: str, given: str | None = None, **variables: str) -> str:
    """Returns what a new process prints that runs this code, with these variables and this input; it has to succeed."""
    environment = {**os.environ, "PYTHONPATH": import_path(ROOT, HELPERS), **variables}
    command = [sys.executable, "-W", "ignore", "-c", code, *arguments]
    done = subprocess.run(command, input=given, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout
