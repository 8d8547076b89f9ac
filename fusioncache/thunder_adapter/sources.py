"""The sources that the rows of the table were written for: ``fusioncache doctor`` compares installed ones with them.

``python -m fusioncache.thunder_adapter.sources`` adds those of the installed Thunder whose digests are in the table.
"""

from __future__ import annotations

import difflib
import json
import lzma
from collections.abc import Mapping
from pathlib import Path

from fusioncache.thunder_adapter.installation import find_own
from fusioncache.thunder_adapter.patches import Patch, list_patches
from fusioncache.thunder_adapter.replacement import Replacement, digest_source, read_source

_FILE = Path(__file__).with_name("sources.json.xz")


def read_sources() -> dict[str, str]:
    """Returns the sources by digest."""
    sources: dict[str, str] = json.loads(lzma.decompress(_FILE.read_bytes())) if _FILE.exists() else {}
    return sources


def read_installed(row: Patch) -> tuple[str, str] | None:
    """Returns digest and source of the function of a row in the installed Thunder; None if it cannot be read."""
    try:
        own = find_own(Replacement(*row.find(), type).get())
        return digest_source(own), read_source(own)
    except (LookupError, OSError, TypeError):
        return None


def write_difference(row: Patch, known: Mapping[str, str]) -> list[str]:
    """Returns the lines of a diff from the nearest source that a row was written for to the installed one.

    Args:
        row: whose function has another source.
        known: sources by digest.
    """
    installed = read_installed(row)
    originals = [known[digest].splitlines() for digest in row.digests if digest in known]
    if installed is None or not originals:
        return []
    digest, source = installed
    diffs = [
        list(difflib.unified_diff(lines, source.splitlines(), "written for", f"installed {digest}", lineterm=""))
        for lines in originals
    ]
    return min(diffs, key=len)


def add_installed() -> int:
    """Adds installed sources whose digests are in the table, and drops all others. Returns how many are kept."""
    rows = [row for group in list_patches().values() for row in group.rows]
    wanted = {digest for row in rows for digest in row.digests}
    found = dict(filter(None, map(read_installed, rows)))
    sources = {digest: text for digest, text in sorted((read_sources() | found).items()) if digest in wanted}
    _FILE.write_bytes(lzma.compress(json.dumps(sources).encode(), preset=9))
    return len(sources)


if __name__ == "__main__":
    print(f"{add_installed()} sources are kept")
