"""Texts without what differs between two runs, checkouts or machines. This is all that is changed in them:

- ``took 12 milliseconds``, which some traces say of the pass that made them, becomes ``took some time``.
- In the name of a template, the first digits of its key's digest become those of a digest of its graph alone: the key
  has versions, settings and the processor, too. No other digest of a key is printed.
- Of a path, the folder that Python imports the file from is left out, and so is the temporary folder.
- An address in memory, such as ``0x7f12ab``, becomes ``0x0``.

Left out are also all seconds of ``stats()``, the texts of ingredients that are not of a graph, and the texts of all
ingredients of programs: their names are printed. Nothing else is changed, and nothing is sorted but the reasons of
``stats()``, the entries of the store, and names of ingredients. Where Thunder goes by the order of a set, the seed of
Python's hashes is fixed in the process that prints.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Mapping
from functools import cache

_TIMES = re.compile(r"took \d+ (?:milli|micro)?seconds")
_ADDRESS = re.compile(r"\b0x[0-9a-f]{4,}\b")
_NAME = re.compile(r"(?<=_)[0-9a-f]{8}(?![0-9a-f])")


def normalize(text: str, digests: Mapping[str, str]) -> str:
    """Returns a text without what differs between two runs, checkouts or machines.

    Args:
        text: of a trace, or a reason.
        digests: for the first digits of the digest of each template's key, those to be printed.
    """
    text = _TIMES.sub("took some time", text)
    text = _NAME.sub(lambda found: digests.get(found[0], found[0]), text)
    for folder in _list_folders():
        text = text.replace(folder, "")
    return _ADDRESS.sub("0x0", text)


@cache
def _list_folders() -> tuple[str, ...]:
    """Returns the folders that are left out of paths, those within others first."""
    folders = [*filter(None, sys.path), tempfile.gettempdir()]
    names = {os.path.join(name, "") for folder in folders for name in (folder, os.path.realpath(folder))}
    return tuple(sorted(names, key=lambda name: (-len(name), name)))
