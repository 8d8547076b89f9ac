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
from contextlib import contextmanager, suppress
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


SILENCE = 5.0
"""After how many seconds without a word there is one."""
_PERIOD = 0.5
_ERASE = "\r\x1b[K"


class ProgressLine:
    """Writes a line to a terminal, again and again, and erases it in the end. Elsewhere it writes nothing.

    Args:
        stream: the terminal; None for stderr as it is when something begins.
        clock: returns seconds.
        wait: waits for an event, for so many seconds at most, and returns whether it happened.
    """

    def __init__(
        self,
        stream: Any = None,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[threading.Event, float], bool] = threading.Event.wait,
    ):
        self._stream = stream
        self._clock = clock
        self._wait = wait
        self._begun = self._ended = float("-inf")
        self._text = ""
        self._shown = False
        self._showing = False
        self._lock = forks.lock()

    @contextmanager
    def show(self, text: Callable[[], str]) -> Iterator[None]:
        """Shows what is done in the body, if that or what was done just before takes long. ``say`` changes it.

        ``text`` is asked once, where there is a terminal. A thread writes the line, and ends with the body. In the body
        of another one there is only the first one's.
        """
        stream = sys.stderr if self._stream is None else self._stream
        if self._showing or not _is_terminal(stream):
            yield
            return
        self._showing, self._text = True, text()
        if self._clock() - self._ended > SILENCE:
            self._begun = self._clock()
        ended = threading.Event()
        thread = threading.Thread(
            target=self._write_until, args=(ended, stream), name="fusioncache progress", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            self._write(stream, None)
            self._showing, self._ended = False, self._clock()

    def say(self, text: str) -> None:
        """Changes what the line says, where there is one."""
        self._text = text

    def _write_until(self, ended: threading.Event, stream: Any) -> None:
        while not self._wait(ended, _PERIOD):
            if self._clock() - self._begun >= SILENCE:
                self._write(stream, self._text)

    def _write(self, stream: Any, text: str | None) -> None:
        """Writes the line anew, or erases it if there is one."""
        with self._lock, suppress(Exception):  # nothing that is only said may end what it is about
            if text is not None or self._shown:
                stream.write(_ERASE if text is None else f"{_ERASE}fusioncache: {text}")
                stream.flush()
            self._shown = text is not None


@cache
def progress_line() -> ProgressLine:
    """Returns the line of this process."""
    return ProgressLine()


def _is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except Exception:  # None, closed, or without the method
        return False
