"""Events of a run as they happen, to follow a long run: as log records, readable lines, or JSON.

Events go to the logger ``fusioncache.events``: hits at DEBUG, all others at INFO, each with its fields as attributes of
the log record. ``FUSIONCACHE_LOG`` also writes them to stderr or stdout, or to a file that several processes may share.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from fusioncache.humanize import escape_controls, format_duration
from fusioncache.ir import Graph, Key, Template
from fusioncache.ir.keys import BACKEND
from fusioncache.observe.record.observations import ThunderCost
from fusioncache.process.files import open_privately
from fusioncache.process.settings import LOG
from fusioncache.process.warning import warn, write_line

logger = logging.getLogger("fusioncache.events")

SCHEMA = 1
"""Version of the JSON lines. Raise it when a field is removed or changes its meaning, not when one is added."""

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
    """One event that ``Stats`` counts. A field that does not apply is None.

    Attributes:
        time: seconds since the epoch.
        pid: of the process.
        what: a region's ``hit``, ``miss`` or ``bypass``; a ``compile`` or a ``load`` for a template; a compile that
            could not be stored (``unkept``); or a program that was loaded, made, refused, replayed from one of another
            length, or filled in.
        template: its name. A bypass has one if its region was a hit or a miss before.
        digest: of the template's key.
        arities: the numbers of residual terms of a hit or a miss, one for each chain.
        reason: why a region was bypassed, a compile not stored, or a program refused.
        seconds: duration of a compile or a load, up to ``time``.
        backend: the backend of the template.
        model: the model of a program: class of the module, or name of the function.
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
        seconds: time of compiling it, up to the end of its first execution, or of loading it.
        loaded: whether it was loaded.
        compile_seconds: time that compiling it took, if it was loaded.
        template: the template that it is for, if known.
        graph: the graph that it computes, without parameters; None if it serves any sizes.
        key: its key in the store; None if it is not stored.
        helped: whether it was loaded because a worker of this process compiled it in the background.
        general: whether it is for any sizes.
        cost: time that Thunder alone spends on the regions that it serves; None if that is the compile time for each.
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
    cost: ThunderCost | None = None


CompileObserver = Callable[[CompileEvent], None]
"""Called with each function that is compiled or loaded, on the thread that did it. Must not raise."""


class EventFile:
    """Appends each event to a file as a line of JSON. After a failed write it warns and stops.

    Args:
        file: other processes may write it, too.
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
            # An unbuffered append is one write at the current end of the file. The file is opened for each line, so
            # that a rotated log is not written any more, and forks share no descriptor.
            with open(file, "ab", buffering=0, opener=_open_without_waiting) as opened:
                if opened.write(line) != len(line):
                    raise OSError("only part of a line could be written")
        except OSError as error:
            self._file = None
            advice = f"set {LOG.name} to a file that can be written, to stderr or to stdout"
            warn(f"events are not logged any more, {file} cannot be written ({error}): {advice}")


def _open_without_waiting(path: str, flags: int) -> int:
    """Opens a file as ``open_privately`` does. A named pipe that is not read is an error, and does not block."""
    return open_privately(path, flags | os.O_NONBLOCK)


class EventStream:
    """Writes a line for each event that takes time, and each distinct line of others once.

    Hits and misses are left out, because they are too many to read.

    Args:
        stream: the name of the stream, which is looked up for each line because it may be replaced.
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
        write_line(f"{_name_process()}: {text}", self._stream)


def _name_process() -> str:
    """Returns the prefix of lines, with the rank if the process has one."""
    rank = os.environ.get(_RANK_VARIABLE, "")
    return f"fusioncache [rank {rank}]" if rank.isdecimal() else "fusioncache"


def open_log() -> EventFile | EventStream | None:
    """Returns the event log that the environment sets; None if it sets none.

    Raises:
        ValueError: if its value is neither a stream nor plausible as a file.
    """
    target = LOG.get_text()
    if not target:
        return None
    if target in ("stderr", "stdout"):
        return EventStream("stderr" if target == "stderr" else "stdout")
    try:
        return EventFile(Path(os.path.expanduser(target)).absolute())  # a program may change its directory
    except OSError as error:
        warn(f"events are not logged, the current directory is gone ({error}): set {LOG.name} to an absolute path")
        return None


def publish(log: EventFile | EventStream | None, what: What, template: Template | None = None, **fields: Any) -> None:
    """Passes an event with these fields of ``Event`` to the logger, and to a log if there is one.

    Costs almost nothing if neither is enabled.
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
