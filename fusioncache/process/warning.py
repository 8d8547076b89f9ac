"""All that the package warns of, said in one way: nothing that is only said may end the call that says it."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

logger = logging.getLogger("fusioncache")

_OWN = str(Path(__file__).parents[1])
_CALLERS = ("thunder", "torch")
"""Packages between the user's code and ours."""


def warn(message: str) -> None:
    """Warns with a ``RuntimeWarning`` for the line of the user's code that led here. Never raises.

    Where warnings are errors (``python -W error``, pytest's ``filterwarnings``), or whatever shows them fails, the
    message goes to the logger ``fusioncache`` at level WARNING, which Python writes to stderr unless told otherwise.

    Args:
        message: what is wrong and what to do, without the package's name.
    """
    text = f"fusioncache: {message}"
    try:
        warnings.warn(text, RuntimeWarning, stacklevel=2, skip_file_prefixes=(_OWN, *_folders()))
    except Exception:  # the warning itself, or whatever somebody put in place of ``warnings.showwarning``
        logger.warning("%s", text)


@contextmanager
def silence() -> Iterator[None]:
    """Has nothing warned of that its body does: it is tried, and no user's call leads there."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@cache
def warn_once(message: str) -> None:
    """Warns as ``warn`` does, of the same thing once in a process."""
    warn(message)


def _folders() -> list[str]:
    modules = (sys.modules.get(name) for name in _CALLERS)
    return [str(Path(file).parent) for module in modules if (file := getattr(module, "__file__", None))]
