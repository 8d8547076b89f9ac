"""Which functions Dynamo compiles."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import thunder
import torch
from torch._dynamo import utils

import fusioncache

_FOLDERS = tuple(str(Path(package.__file__).parent) for package in (thunder, fusioncache))
_GENERATED = ("thunder.", "fusioncache.")
"""What names of files begin with in which what Thunder writes, and we rewrite, does not stand."""


@contextmanager
def note_frames() -> Iterator[list[str]]:
    """Yields a list that has the file of each frame that Dynamo compiled in the body, after that."""
    files: list[str] = []
    utils.set_compilation_metrics_limit(10_000)
    utils.clear_compilation_metrics()
    try:
        yield files
    finally:
        files += [str(each.co_filename) for each in utils.get_compilation_metrics()]
        utils.clear_compilation_metrics()
        utils.set_compilation_metrics_limit(utils.DEFAULT_COMPILATION_METRICS_LIMIT)
        torch._dynamo.reset()


def is_thunders(file: str) -> bool:
    """True if a file is Thunder's or ours, or stands for code that either made."""
    return file.startswith((*_FOLDERS, *_GENERATED))
