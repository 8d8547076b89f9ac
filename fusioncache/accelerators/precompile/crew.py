"""Processes that compile for this one, which are all in one other process's care: see ``nursery.py``.

Several, and processes, because a compiler may hold Python's lock. Whatever happens to them, who waits for one does so
for a bounded time, and can compile for itself what it waited for.
"""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fusioncache.accelerators.precompile import nursery
from fusioncache.accelerators.precompile.entry_compiler import Outcome
from fusioncache.accelerators.precompile.link import Link
from fusioncache.accelerators.precompile.offspring import can_fork
from fusioncache.accelerators.precompile.tasks import Task
from fusioncache.process import forks

logger = logging.getLogger("fusioncache")

ANSWER_SECONDS = 5.0
"""How long to wait for a word on whether somebody is at a task."""
_MARGIN_SECONDS = 10.0
"""How much longer to wait for a worker than the nursery does, before the nursery is taken for dead."""
_MOMENT = 0.005
"""How long to let the threads of a crew hear and say what they could not while a compiler held Python's lock."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a task in the crew.

    Attributes:
        outcome: of compiling it.
        seconds: that it took.
        started: those of them that a compiler's start took.
        here: whether it was this process that compiled it, while it waited for another one.
    """

    outcome: Outcome
    seconds: float
    here: bool = False
    started: float = 0.0


NO_WORKER = Answer(Outcome("refused", nursery.NO_WORKER, passing=True), 0.0)


@dataclass(frozen=True, slots=True)
class Taken:
    """The news that a worker is at a task, and the number of another one that nobody will begin with; None if none."""

    spare: int | None


Heard = str | Taken | Answer


@dataclass(slots=True)
class _Pending:
    """A task that was handed over: what is heard of it, in order; ``answer`` is the last of it."""

    heard: queue.SimpleQueue[Heard] = field(default_factory=queue.SimpleQueue)
    answer: Answer | None = None


class Crew:
    """A crew for a store.

    Args:
        directory: of the store.
        jobs: how many processes compile at most, besides this one.
        backend: that most is compiled with.
        device: the number of the GPU to compile for; None if that is for none, or for that of the first task.
        quiet: whether nobody is to see what the processes write to stderr.
        fork: whether workers may be forked off the process that has them in its care, where that can be done.
        early: whether workers open their device before there is anything to compile, because there will be much.

    Attributes:
        answers: every task's number with what became of it, as soon as that is known.
    """

    def __init__(
        self,
        directory: Path,
        jobs: int,
        backend: str,
        device: int | None = None,
        *,
        quiet: bool = True,
        fork: bool = True,
        early: bool = False,
    ):
        self.answers: queue.SimpleQueue[tuple[int, Answer]] = queue.SimpleQueue()
        self.jobs = jobs
        self._arguments = [str(directory), backend, str(jobs)]
        self._device = device
        self._switches = [str(int(fork and can_fork())), str(int(early))]
        self._quiet = quiet
        self._lock = forks.lock()
        self._link: Link | None = None
        self._pending: dict[int, _Pending] = {}
        self._numbers = 0
        self._longest = 0.0
        self._failed = False
        forks.register(self)

    @property
    def over(self) -> bool:
        """Whether there is nobody to hand anything to, and never will be."""
        return self._failed

    @property
    def pid(self) -> int | None:
        """Of the process that has the others in its care; None if there is none."""
        link = self._link
        return None if link is None else link.pid

    def start(self) -> bool:
        """Starts the processes if there are none, and returns whether there are some. Waits for nothing."""
        with self._lock:
            if self._link is None and not self._failed:
                device = "" if self._device is None else str(self._device)
                try:
                    self._link = Link(self, [*self._arguments, device, *self._switches], self._quiet)
                except OSError as error:
                    logger.info("no process to compile with", exc_info=error)
                    self._failed = True
            return self._link is not None

    def hand_over(self, task: Task) -> int | None:
        """Hands a task over, and returns its number; None if there is nobody."""
        with self._lock:
            if not self.start() or self._link is None:
                return None
            if task.device != self._device:
                self._device = task.device
                self._link.send([nursery.DEVICE, self._device])
            self._numbers += 1
            self._pending[self._numbers] = _Pending()
            self._link.send([nursery.DO, self._numbers, task.weight, task.encode()])
            return self._numbers

    def take(self, number: int, help_: Callable[[int], Answer] | None = None) -> Answer | None:
        """Waits for what becomes of a task if somebody is at it; else takes it back, and returns None.

        It is asked once for each task. A task that nobody has begun is this process's from now on.

        Args:
            number: of the task.
            help_: compiles the task of another number here, and says what it took, where this would only wait.
        """
        with self._lock:
            pending, link = self._pending.get(number), self._link
        if pending is None:
            return None
        if pending.answer is None and link is not None:
            link.send([nursery.CLAIM, number])
            if not link.open:
                time.sleep(_MOMENT)
            if link.open:
                self._wait(number, pending, link, help_)
        with self._lock:
            self._pending.pop(number, None)
            if not self._pending and link is not None:
                link.send([nursery.REST])
        return pending.answer

    def _wait(self, number: int, pending: _Pending, link: Link, help_: Callable[[int], Answer] | None) -> None:
        """Waits until a task has an answer, or nobody is at it."""
        deadline = time.monotonic() + ANSWER_SECONDS
        while pending.answer is None:
            try:
                heard = pending.heard.get(timeout=max(deadline - time.monotonic(), 0.0))
            except queue.Empty:
                logger.info("a crew does not answer")
                link.end()
                return
            if heard == nursery.YOURS:
                return
            if isinstance(heard, Taken) and heard.spare is not None and help_ is not None:
                self._help(heard.spare, help_)
                link.send([nursery.CLAIM, number])  # there may be another one by now
                deadline = time.monotonic() + ANSWER_SECONDS
            else:
                deadline = time.monotonic() + self._patience()

    def _help(self, number: int, help_: Callable[[int], Answer]) -> None:
        self._put(number, Taken(None))  # for another thread that may want it now
        self._close(number, help_(number))

    def _patience(self) -> float:
        """Returns how long to wait for a worker: a while longer than the nursery does."""
        return nursery.allow_seconds(self._longest) + _MARGIN_SECONDS

    def waiting(self) -> int:
        """Returns how many tasks have no answer yet."""
        with self._lock:
            return sum(pending.answer is None for pending in self._pending.values())

    def is_done(self, number: int) -> bool:
        """Tells whether a task has an answer, or is none that was handed over."""
        with self._lock:
            pending = self._pending.get(number)
            return pending is None or pending.answer is not None

    def end(self) -> None:
        """Ends all processes, whatever they do at the moment."""
        with self._lock:
            link, self._failed = self._link, True
        if link is not None:
            link.end()

    def after_fork(self) -> None:
        """Leaves the processes of its parent alone in a forked child, and does without."""
        link, self._link, self._failed, self._pending = self._link, None, True, {}
        if link is not None:
            link.leave()

    def hear(self, message: Any) -> None:
        """Takes in what the nursery says. Called by the thread that listens."""
        match message:
            case [nursery.YOURS, int(number)]:
                self._put(number, nursery.YOURS)
            case [nursery.TAKEN, int(number), spare]:
                self._put(number, Taken(spare))
            case [nursery.DONE, int(number), result, reason, passing, seconds, started]:
                self._close(number, Answer(Outcome(result, reason, passing), seconds, started=started))

    def _put(self, number: int, heard: Heard) -> None:
        with self._lock:
            pending = self._pending.get(number)
        if pending is not None:
            pending.heard.put(heard)

    def lose(self, link: Link, *, failed: bool) -> None:
        """Takes note that the nursery is gone. After one that failed there is no other. Called by who listens to it."""
        with self._lock:
            self._failed |= failed
            if self._link is link:
                self._link = None
            open_ = [number for number, pending in self._pending.items() if pending.answer is None]
        for number in open_:
            self._close(number, NO_WORKER)

    def _close(self, number: int, answer: Answer) -> None:
        self._longest = max(self._longest, answer.seconds)
        with self._lock:
            pending = self._pending.get(number)
            if pending is not None:
                pending.answer = answer
        self._put(number, answer)
        self.answers.put((number, answer))


def iterate_answers(crew: Crew, numbers: list[int | None]) -> Iterator[Answer]:
    """Yields what became of these tasks, as soon as it is known, in no order. There is none where nobody was."""
    missing = set(numbers)
    for _ in range(numbers.count(None)):
        yield NO_WORKER
    missing.discard(None)
    while missing:
        number, answer = crew.answers.get()
        if number in missing:
            missing.discard(number)
            yield answer
