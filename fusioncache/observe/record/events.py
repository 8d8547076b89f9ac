"""What happens, as it happens, for those who follow a long run: as log records, as lines for people and as JSON.

Events go to the logger ``fusioncache.events``: hits at DEBUG, all others at INFO, each with its fields as attributes of
the log record. ``FUSIONCACHE_LOG`` has them written to stderr or stdout as well, or to a file, which several processes
may share.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from fusioncache.humanize import escape_controls, format_duration
from fusioncache.ir import Graph, Key, Template
from fusioncache.ir.keys import BACKEND
from fusioncache.observe.record.observations import Alone
from fusioncache.process.files import open_privately
from fusioncache.process.settings import LOG
from fusioncache.process.warning import warn

logger = logging.getLogger("fusioncache.events")

SCHEMA = 1
"""Of the lines of JSON. Raise it when a field changes its meaning or goes; a new field changes nothing for readers."""

_RANK_VARIABLE = "RANK"

What = Literal[
    "hit",
    "miss",
    "bypass",
    "compile",
    "load",
    "unkept",
    "program loaded",
    "program made",
    "program refused",
    "program replayed",
    "program filled",
]


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that ``Stats`` counts. A field that does not apply is None.

    Attributes:
        time: seconds since the epoch.
        pid: of the process.
        what: a region was a ``hit``, a ``miss`` or a ``bypass``; or there was a ``compile`` or a ``load`` for a
            template; or what was compiled is ``unkept``; or a program, which is what Thunder makes of a model for one
            kind of input, was loaded, made, refused, or replayed from those at other lengths.
        template: its name. A bypass has one if its region was a hit or a miss before.
        digest: of the template's key.
        arities: the numbers of residual terms of a hit or a miss, a chain each.
        reason: of a bypass, and of what is not kept or not used.
        seconds: that a compile or a load took, up to ``time``.
        backend: that the template is for.
        model: that a program is for: class of the module, or name of the function.
    """

    time: float
    pid: int
    what: What
    template: str | None = None
    digest: str | None = None
    arities: tuple[int, ...] | None = None
    reason: str | None = None
    seconds: float | None = None
    backend: str | None = None
    model: str | None = None

    def __str__(self) -> str:
        terms = f"(arities {' / '.join(map(str, self.arities))})" if self.arities else None
        took = f"in {format_duration(self.seconds)}" if self.seconds is not None else None
        backend = f"({self.backend})" if took and self.backend else None
        text = " ".join(part for part in (self.what, self.template or self.model, terms, took, backend) if part)
        return escape_controls(f"{text}: {self.reason}" if self.reason else text)


@dataclass(frozen=True, slots=True)
class CompileEvent:
    """A function that a backend compiled, or that was loaded from the store.

    Attributes:
        backend: its name.
        seconds: that compiling it took, up to the end of its first execution, or loading it.
        loaded: whether it was loaded.
        compile_seconds: that compiling took, where the function was loaded.
        template: that it is for; None for a region that is compiled by itself.
        graph: what it computes, without parameters; None for a region that is compiled by itself, and for a sum of
            residual terms in the backend's own way.
        key: under which the store has it; None if it is not persisted.
        helped: whether it was loaded because a worker of this process compiled it beside.
        general: whether it is for any sizes.
        alone: what Thunder alone spends on the regions that it serves; None for what compiling took, each time.
    """

    backend: str
    seconds: float
    loaded: bool = False
    compile_seconds: float = 0.0
    template: Template | None = None
    graph: Graph | None = None
    key: Key | None = None
    helped: bool = False
    general: bool = False
    alone: Alone | None = None


CompileObserver = Callable[[CompileEvent], None]
"""Is told of each function that is compiled or loaded, on the thread that did so. Must not raise."""


class EventFile:
    """Appends each event to a file as a line of JSON. After a line that cannot be written it warns and writes no more.

    Args:
        file: may be written by other processes as well.
    """

    def __init__(self, file: Path):
        self._file: Path | None = file

    def log_event(self, event: Event) -> None:
        """Writes an event. Never raises."""
        file = self._file
        if file is None:
            return
        line = json.dumps({"schema": SCHEMA, **asdict(event)}).encode() + b"\n"
        try:
            # Without a buffer it is one write, at the end of the file wherever that is by then. Opened for each line,
            # so that a log which was moved away to start a new one is not written any more, and forks share nothing.
            with open(file, "ab", buffering=0, opener=open_privately) as opened:
                if opened.write(line) != len(line):
                    raise OSError("only part of a line could be written")
        except OSError as error:
            self._file = None
            advice = f"set {LOG.name} to a file that can be written, to stderr or to stdout"
            warn(f"events are not logged any more, {file} cannot be written ({error}): {advice}")


class EventStream:
    """Writes a line for what takes time, and for what is left out and why, each reason once.

    Hits and misses are too many for people to read.

    Args:
        stream: the name of the stream. Each line goes to the one that Python has at the moment.
    """

    def __init__(self, stream: Literal["stderr", "stdout"]):
        self._stream = stream
        self._written: set[str] = set()

    def log_event(self, event: Event) -> None:
        """Writes an event. Never raises."""
        text = str(event)
        if event.what in ("hit", "miss") or text in self._written:
            return
        if event.seconds is None:
            self._written.add(text)
        # One call, so that lines of several threads stay whole. A closed stream has no reader.
        with suppress(OSError, ValueError, AttributeError):
            stream = getattr(sys, self._stream)
            stream.write(f"{_name_process()}: {text}\n")
            stream.flush()


def _name_process() -> str:
    """Returns who writes, and of several ranks which."""
    rank = os.environ.get(_RANK_VARIABLE, "")
    return f"fusioncache [rank {rank}]" if rank.isdecimal() else "fusioncache"


def open_log() -> EventFile | EventStream | None:
    """Returns where the environment asks for events to be written; None if it does not ask.

    Raises:
        ValueError: if it says something that is neither a stream nor likely to be meant as a file.
    """
    target = LOG.get_text()
    if not target:
        return None
    if target in ("stderr", "stdout"):
        return EventStream("stderr" if target == "stderr" else "stdout")
    # Absolute now, because a program may change its directory.
    return EventFile(Path(os.path.expanduser(target)).absolute())


def publish(log: EventFile | EventStream | None, what: What, template: Template | None = None, **fields: Any) -> None:
    """Hands an event with these fields of ``Event`` to the logger, and to a log if there is one.

    This costs next to nothing if nothing listens.
    """
    level = logging.DEBUG if what == "hit" else logging.INFO
    logged = logger.isEnabledFor(level)
    if not logged and log is None:
        return
    if template is not None:
        key = template.key
        fields |= {"template": template.name, "digest": key.digest, "backend": key.texts.get(BACKEND)}
    event = Event(time.time(), os.getpid(), what, **fields)
    if logged:
        logger.log(level, "%s", event, extra=asdict(event))
    if log is not None:
        log.log_event(event)
