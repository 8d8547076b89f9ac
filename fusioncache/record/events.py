"""What happens, as it happens, for who follows a long run: records of a logger, and what ``record/logs.py`` writes.

Events go to the logger ``fusioncache.events``: hits at DEBUG, all others at INFO, each with its fields as attributes of
the log record.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Literal, Protocol

from fusioncache.ir import Graph, Key, Template
from fusioncache.ir.ingredients import BACKEND

logger = logging.getLogger("fusioncache.events")

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
        backend: that the template is for.
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

    def __str__(self) -> str:
        terms = f"(arities {' / '.join(map(str, self.arities))})" if self.arities else None
        took = f"in {self.seconds:.3f} s" if self.seconds is not None else None
        said = " ".join(part for part in (self.what, self.template, terms, took) if part)
        return f"{said}: {self.reason}" if self.reason else said


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
    """

    backend: str
    seconds: float
    loaded: bool = False
    compile_seconds: float = 0.0
    template: Template | None = None
    graph: Graph | None = None
    key: Key | None = None


CompileObserver = Callable[[CompileEvent], None]
"""Is told of each function that is compiled or loaded, on the thread that did so. Must not raise."""


class Log(Protocol):
    """Where events are written besides."""

    def write(self, event: Event) -> None:
        """Takes down an event. Never raises."""


class Events:
    """Where events go.

    Args:
        log: gets each of them besides the logger.
    """

    def __init__(self, log: Log | None = None):
        self._log = log

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
        level = logging.DEBUG if what == "hit" else logging.INFO
        logged = logger.isEnabledFor(level)
        if not logged and self._log is None:
            return
        name, digest, backend = _named(template) if template else (None, None, None)
        event = Event(time.time(), os.getpid(), what, name, digest, arities, reason, seconds, backend)
        if logged:
            logger.log(level, "%s", event, extra=asdict(event))
        if self._log is not None:
            self._log.write(event)


def _named(template: Template) -> tuple[str, str, str | None]:
    backend = template.key.texts.get(BACKEND)
    return template.name, template.key.digest, backend
