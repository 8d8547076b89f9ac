"""Paths of the parts of the repository."""

import os
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
