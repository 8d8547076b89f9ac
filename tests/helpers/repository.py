"""Where the parts of the repository are."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "fusioncache"
HELPERS = ROOT / "tests" / "helpers"
DOCS = ROOT / "docs"
README = ROOT / "README.md"


def import_path(*folders: Path | str) -> str:
    """Returns the ``PYTHONPATH`` of a process that finds what these folders hold, and all that is found here."""
    return os.pathsep.join([*map(str, folders), *filter(None, sys.path)])
