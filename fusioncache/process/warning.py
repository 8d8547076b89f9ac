"""What users are told on stderr: warnings, and a line with the progress of a long compile.

Nothing that is only said may end the call that says it.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from fusioncache.process import forks

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
    except Exception:  # the warning itself, or what other code put in place of ``warnings.showwarning``
        logger.warning("%s", text)


def silence() -> AbstractContextManager[object]:
    """Returns a context in which no warning is shown. It is for attempts to which no user's call leads."""
    return warnings.catch_warnings(action="ignore")


@cache
def warn_once(message: str) -> None:
    """Warns as ``warn`` does, of the same thing once in a process."""
    warn(message)


def _folders() -> list[str]:
    modules = (sys.modules.get(name) for name in _CALLERS)
    return [str(Path(file).parent) for module in modules if (file := getattr(module, "__file__", None))]


SILENCE = 5.0
"""After how many seconds without a word there is one."""
_ERASE = "\r\x1b[K"


class ProgressLine:
    """Writes a line to stderr where that is a terminal, and erases it in the end. Elsewhere it writes nothing."""

    def __init__(self) -> None:
        self._begun = self._ended = float("-inf")
        self._stream: Any = None
        self._text = ""
        self._shown = False
        self._lock = forks.lock()

    @contextmanager
    def show(self, text: Callable[[], str]) -> Iterator[None]:
        """Shows what is done in the body, if that or what was done just before takes long. ``say`` changes it.

        ``text`` is asked once, where there is a terminal. In the body of another line there is only the first one's.
        """
        if self._stream is not None or not _is_terminal(sys.stderr):
            yield
            return
        self._stream, self._text, now = sys.stderr, text(), time.monotonic()
        if now - self._ended > SILENCE:
            self._begun = now
        timer = threading.Timer(max(self._begun + SILENCE - now, 0.0), self._write)
        timer.daemon = True
        with suppress(RuntimeError):  # no thread can be started: nothing is shown
            timer.start()
        try:
            yield
        finally:
            timer.cancel()
            if timer.ident is not None:
                timer.join()
            self._erase()
            self._stream, self._ended = None, time.monotonic()

    def say(self, text: str) -> None:
        """Changes what the line says, where there is one."""
        self._text = text
        if self._shown:
            self._write()

    def _write(self) -> None:
        with self._lock, suppress(Exception):  # nothing that is only said may end what it is about
            self._shown = True
            self._stream.write(f"{_ERASE}fusioncache: {self._text}")
            self._stream.flush()

    def _erase(self) -> None:
        with self._lock, suppress(Exception):
            if self._shown:
                self._shown = False
                self._stream.write(_ERASE)
                self._stream.flush()


@cache
def progress_line() -> ProgressLine:
    """Returns the line of this process."""
    return ProgressLine()


def _is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except Exception:  # None, closed, or without the method
        return False
