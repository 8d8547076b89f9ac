"""What happens, as it happens, for who follows a long run: records of a logger, and lines of JSON in a file.

Events go to the logger ``fusioncache.events``: hits at DEBUG, all others at INFO, each with its fields as attributes of
the log record. ``FUSIONCACHE_LOG=FILE`` appends each as one line as well. Several processes may share the file.
"""

from __future__ import annotations

import json
import logging
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from fusioncache import forks
from fusioncache.ir import Template
from fusioncache.warning import warn

logger = logging.getLogger("fusioncache.events")

LOG_VARIABLE = "FUSIONCACHE_LOG"
SCHEMA = 1
"""Of the lines. Raise it when a field changes its meaning or goes; a new field changes nothing for who reads it."""

What = Literal["hit", "miss", "bypass", "compile", "load", "unkept"]


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that ``Stats`` counts. What there is not is None.

    Attributes:
        time: seconds since the epoch.
        pid: of the process.
        what: a region was a ``hit``, a ``miss`` or a ``bypass``; or there was a ``compile`` or a ``load`` for a
            template; or what was compiled is ``unkept``.
        template: its name. A bypass has one if its region was a hit or a miss before.
        digest: of the template's key.
        arities: the numbers of residual terms of a hit or a miss, a chain each.
        reason: of a bypass, and of what is not kept.
        seconds: that a compile or a load took, up to ``time``.
    """

    time: float
    pid: int
    what: What
    template: str | None = None
    digest: str | None = None
    arities: tuple[int, ...] | None = None
    reason: str | None = None
    seconds: float | None = None

    def __str__(self) -> str:
        terms = f"(arities {' / '.join(map(str, self.arities))})" if self.arities else None
        took = f"in {self.seconds:.3f} s" if self.seconds is not None else None
        said = " ".join(part for part in (self.what, self.template, terms, took) if part)
        return f"{said}: {self.reason}" if self.reason else said


class Events:
    """Where events go. A file that cannot be written costs one warning, and is not tried again.

    Args:
        file: gets a line of JSON for each event.
    """

    def __init__(self, file: Path | None = None):
        self._file = file
        self._lock = forks.lock()

    def tell(
        self,
        what: What,
        template: Template | None = None,
        *,
        arities: tuple[int, ...] | None = None,
        reason: str | None = None,
        seconds: float | None = None,
    ) -> None:
        """Something happened. Costs next to nothing if nobody listens."""
        level, file = logging.DEBUG if what == "hit" else logging.INFO, self._file
        logged = logger.isEnabledFor(level)
        if not logged and file is None:
            return
        name, digest = (template.name, template.key.digest) if template else (None, None)
        event = Event(time.time(), os.getpid(), what, name, digest, arities, reason, seconds)
        if logged:
            logger.log(level, "%s", event, extra=asdict(event))
        if file is not None:
            self._append(file, event)

    def _append(self, file: Path, event: Event) -> None:
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
            advice = f"set {LOG_VARIABLE} to a file that can be written"
            warn(f"events are not logged any more, {file} cannot be written ({error}): {advice}")


def log_file() -> Path | None:
    """The file that the environment asks for.

    Raises:
        ValueError: if it says yes or no and names no file.
    """
    said = os.environ.get(LOG_VARIABLE, "")
    if said in ("0", "1"):
        raise ValueError(f"{LOG_VARIABLE} must name a file, got {said!r}: say ./{said} if that is the file's name")
    # Absolute now, because a program may change its directory.
    return Path(said).absolute() if said else None
