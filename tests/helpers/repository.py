"""Where the parts of the repository are."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "fusioncache"
HELPERS = ROOT / "tests" / "helpers"
DOCS = ROOT / "docs"
README = ROOT / "README.md"
