"""Paths of the parts of the repository, its code in new processes, and the imports of a file."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
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


def find_imports(tree: ast.AST) -> Iterator[tuple[str, str, str]]:
    """Yields the module that each name is imported from, its name there and its name here."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "", alias.asname or alias.name.partition(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module, alias.name, alias.asname or alias.name) for alias in node.names)
