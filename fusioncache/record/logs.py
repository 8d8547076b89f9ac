"""Where events are written for who follows a run: lines for people on stderr or stdout, lines of JSON in a file.

``FUSIONCACHE_LOG`` is ``stderr``, ``stdout``, or a file, which several processes may share.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from fusioncache.humanize import escape_controls, format_duration
from fusioncache.process import forks
from fusioncache.process.settings import LOG
from fusioncache.process.warning import warn
from fusioncache.record.events import Event, Log

SCHEMA = 1
"""Of the lines of JSON. Raise it when a field changes its meaning or goes; a new field changes nothing for readers."""

_RANK_VARIABLE = "RANK"


class JsonLines:
    """Appends each event to a file as one line. One that cannot be written costs one warning, and is not tried again.

    Args:
        file: may be others' as well.
    """

    def __init__(self, file: Path):
        self._file: Path | None = file
        self._lock = forks.lock()

    def write(self, event: Event) -> None:
        """See ``Log``."""
        file = self._file
        if file is None:
            return
        line = json.dumps({"schema": SCHEMA, **asdict(event)}).encode() + b"\n"
        try:
            # Without a buffer it is one write, at the end of the file wherever that is by then. Opened for each line,
            # so that a log which was moved away to start a new one is not written any more, and forks share nothing.
            with file.open("ab", buffering=0) as opened:
                if opened.write(line) != len(line):
                    raise OSError("only part of a line could be written")
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        with self._lock:
            file, self._file = self._file, None
        if file is not None:
            advice = f"set {LOG.name} to a file that can be written, to stderr or to stdout"
            warn(f"events are not logged any more, {file} cannot be written ({error}): {advice}")


class Lines:
    """Says what takes time, and what is left out and why, each reason once. Hits and misses are too many to be said.

    Args:
        stream: which of the two; the one that Python has at the moment.
    """

    def __init__(self, stream: Literal["stderr", "stdout"]):
        self._stream = stream
        self._said: set[str] = set()

    def write(self, event: Event) -> None:
        """See ``Log``."""
        text = said(event)
        if text is None or text in self._said:
            return
        if event.seconds is None:
            self._said.add(text)
        # One call, so that lines of several threads stay whole. A stream that is closed has nobody who reads it.
        with suppress(OSError, ValueError, AttributeError):
            stream = getattr(sys, self._stream)
            stream.write(f"{_name()}: {text}\n")
            stream.flush()


def said(event: Event) -> str | None:
    """An event in a few words; None if it is not worth a line."""
    reason = escape_controls(event.reason or "")
    match event.what:
        case "compile" | "load":
            did = "compiled" if event.what == "compile" else "loaded"
            backend = f" ({escape_controls(event.backend)})" if event.backend else ""
            return f"{did} {event.template} in {format_duration(event.seconds or 0.0)}{backend}"
        case "bypass":
            which = f"{event.template} runs" if event.template else "a region is left"
            return f"{which} as Thunder made it: {reason}"
        case "unkept":
            return f"not kept for later processes: {reason.removeprefix('not kept: ')}"
        case _:
            return None


def _name() -> str:
    """Who says it: of several processes, which."""
    rank = os.environ.get(_RANK_VARIABLE, "")
    return f"fusioncache [rank {rank}]" if rank.isdecimal() else "fusioncache"


def asked_log() -> Log | None:
    """Where the environment asks for events to be written; None if it does not.

    Raises:
        ValueError: if it says something that is neither a stream nor likely to be meant as a file.
    """
    given = LOG.read()
    if not given:
        return None
    if given in ("stderr", "stdout"):
        return Lines("stderr" if given == "stderr" else "stdout")
    # Absolute now, because a program may change its directory.
    return JsonLines(Path(os.path.expanduser(given)).absolute())
