"""Messages on stderr: warnings, and a progress line during a long compile.

A failure to write a message never ends the call that writes it.
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
from typing import Any, Literal

from fusioncache.process import forks

logger = logging.getLogger("fusioncache")
"""The logger of all modules except ``events``, which has its own."""

_OWN = str(Path(__file__).parents[1])
_CALLERS = ("thunder", "torch")
"""Packages between the user's code and fusioncache."""


def warn(message: str) -> None:
    """Issues a ``RuntimeWarning`` for the line of the user's code that led here. Never raises.

    If warnings are errors (``python -W error``, pytest's ``filterwarnings``), or the function that shows them fails,
    the message goes to the logger ``fusioncache`` at level WARNING, which Python writes to stderr by default.

    Args:
        message: the problem and what to do, without the package's name.
    """
    text = f"fusioncache: {message}"
    try:
        warnings.warn(text, RuntimeWarning, stacklevel=2, skip_file_prefixes=(_OWN, *_folders()))
    except Exception:  # the warning itself, or an error of a replaced ``warnings.showwarning``
        logger.warning("%s", text)


def silence() -> AbstractContextManager[object]:
    """Returns a context in which no warning is shown, for attempts that no call of the user caused."""
    return warnings.catch_warnings(action="ignore")


@contextmanager
def log_errors(message: str, *args: object) -> Iterator[None]:
    """Logs an exception of the body and suppresses it, because the program can go on without the body's result."""
    try:
        yield
    except Exception as error:
        logger.info(message, *args, exc_info=error)


def write_line(text: str, stream: Literal["stderr", "stdout"] = "stderr") -> None:
    """Writes a line in one call, so that lines of several threads stay whole. Never raises.

    Args:
        text: of the line.
        stream: the name of the stream, which may be replaced, closed or missing.
    """
    with suppress(OSError, ValueError, AttributeError):
        found = getattr(sys, stream)
        found.write(f"{text}\n")
        found.flush()


@cache
def warn_once(message: str) -> None:
    """Warns like ``warn``, once per message in a process."""
    warn(message)


def _folders() -> list[str]:
    modules = (sys.modules.get(name) for name in _CALLERS)
    return [str(Path(file).parent) for module in modules if (file := getattr(module, "__file__", None))]


SILENCE = 5.0
"""Seconds without output after which the progress line is shown."""
_ERASE = "\r\x1b[K"


class ProgressLine:
    """A progress line on stderr, which is erased at the end. If stderr is not a terminal, nothing is written."""

    def __init__(self) -> None:
        self._begun = self._ended = float("-inf")
        self._stream: Any = None
        self._text = ""
        self._shown = False
        self._lock = forks.lock()

    @contextmanager
    def show(self, text: Callable[[], str]) -> Iterator[None]:
        """Shows a text while the body runs, if this body together with those just before it takes long.

        ``text`` is called once, and only on a terminal; ``say`` changes the line. A nested ``show`` has no effect.
        """
        if self._stream is not None or not _is_terminal(sys.stderr):
            yield
            return
        self._stream, self._text, now = sys.stderr, text(), time.monotonic()
        if now - self._ended > SILENCE:
            self._begun = now
        timer = threading.Timer(max(self._begun + SILENCE - now, 0.0), self._write)
        timer.daemon = True
        with suppress(RuntimeError):  # if no thread can be started, nothing is shown
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
        """Changes the text of the line, shown or not."""
        self._text = text
        if self._shown:
            self._write()

    def _write(self) -> None:
        with self._lock, suppress(Exception):  # a failed write must not end the work that it describes
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
    """Returns the progress line of this process."""
    return ProgressLine()


def _is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except Exception:  # None, closed, or without the method
        return False
