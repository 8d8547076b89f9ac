"""Writes traces into files: Thunder's, and those after each pass. ``fusioncache show --passes`` reads the files.

They are written if ``FUSIONCACHE_PASSES`` is 1. Each process has a folder below ``passes`` in fusioncache's directory,
and each trace a folder in that, with a file for each pass that changed the trace:

    passes/20261127-105501-4711/001.1 forward Llama/0 thunder.py
    passes/20261127-105501-4711/001.1 forward Llama/5 templates.py
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fusioncache.process.files import make_folders, open_privately
from fusioncache.process.settings import PASSES, find_directory
from fusioncache.process.warning import warn_once

MOST_PROCESSES = 8
"""How many processes' folders are preserved, the newest."""
FIRST = "thunder"
"""The name of a trace before all passes."""

_UNSAFE = re.compile(r"[^\w .-]+")
_PROCESS, _FILE = re.compile(r"\d{8}-\d{6}-\d+"), re.compile(r"(\d+) (.*)\.py")
"""The names of folders and files that are written here; others are a user's."""


@dataclass(frozen=True, slots=True)
class TraceFile:
    """A trace that was written.

    Attributes:
        trace: the name of the trace, such as ``001.1 forward Llama``.
        name: the pass that made it; ``thunder`` for a trace before all passes.
        text: of the trace.
    """

    trace: str
    name: str
    text: str


class TraceWriter:
    """Writes the versions of one trace.

    Args:
        title: of the trace. Titles sort in the order of the traces.
    """

    def __init__(self, title: str):
        self._title = _UNSAFE.sub("_", title) if PASSES.get_text() == "1" else ""
        self._last: Any = None
        self._number = 0

    def write_trace(self, name: str, trace: Any) -> None:
        """Writes a trace if the pass of this name changed it. Never raises."""
        if not self._title or trace is self._last:
            return
        try:
            folder = folder_of_process() / self._title
            make_folders(folder)
            path = folder / f"{self._number} {name}.py"
            with open(path, "w", encoding="utf-8", opener=open_privately) as file:
                file.write(f"{trace}\n")
            self._last, self._number = trace, self._number + 1
        except Exception as error:  # such as a full disk: the model continues
            warn_once(f"traces are not written after passes: {error}")
            self._title = ""


@cache
def folder_of_process() -> Path:
    """Returns the folder of this process. Removes the folders of the oldest processes first."""
    parent = find_directory() / "passes"
    for old in list_processes(parent)[MOST_PROCESSES - 1 :]:
        shutil.rmtree(old, ignore_errors=True)
    return parent / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"


def list_processes(parent: Path) -> list[Path]:
    """Returns the folders of processes, the newest first."""
    paths = parent.iterdir() if parent.is_dir() else ()
    found = (path for path in paths if _PROCESS.fullmatch(path.name) and path.is_dir())
    return sorted(found, key=lambda path: path.name, reverse=True)


def read_traces(process: Path) -> Iterator[TraceFile]:
    """Yields the traces in the folder of a process, in the order in which they were written."""
    for folder in sorted(path for path in process.iterdir() if path.is_dir()):
        named = ((path, _FILE.fullmatch(path.name)) for path in folder.iterdir() if path.is_file())
        for _, name, path in sorted((int(found[1]), found[2], path) for path, found in named if found):
            yield TraceFile(folder.name, name, path.read_text(encoding="utf-8", errors="replace"))
