"""Processes that compile for this one, which are all in one other process's care: see ``nursery.py``.

Several, and processes, because a compiler may hold Python's lock. Whatever happens to them, who waits for one does so
for a bounded time, and can compile for itself what it waited for.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import queue
import socket
import subprocess
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fusioncache.precompile import nursery
from fusioncache.precompile.channel import encode, make_pair
from fusioncache.precompile.entry_compiler import Outcome
from fusioncache.precompile.offspring import can_fork, start_module
from fusioncache.precompile.tasks import Task
from fusioncache.process import forks

logger = logging.getLogger("fusioncache")

MODULE = "fusioncache.precompile.nursery"

ANSWER_SECONDS = 5.0
"""How long to wait for a word on whether somebody is at a task."""
_MARGIN_SECONDS = 10.0
"""How much longer to wait for a worker than the nursery does, before the nursery is taken for dead."""
END_SECONDS = 5.0
_MOMENT = 0.005
"""How long to let the threads of a crew hear and say what they could not while a compiler held Python's lock."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a task in the crew.

    Attributes:
        outcome: of compiling it.
        seconds: that it took.
        here: whether it was this process that compiled it, while it waited for another one.
    """

    outcome: Outcome
    seconds: float
    here: bool = False


NO_WORKER = Answer(Outcome("refused", nursery.NO_WORKER, passing=True), 0.0)


@dataclass(frozen=True, slots=True)
class Taken:
    """The news that a worker is at a task, and the number of another one that nobody will begin with; None if none."""

    spare: int | None


Heard = str | Taken | Answer


@dataclass(slots=True)
class _Entry:
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
        self._line: _Line | None = None
        self._entries: dict[int, _Entry] = {}
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
        line = self._line
        return None if line is None else line.pid

    def start(self) -> bool:
        """Starts the processes if there are none, and returns whether there are some. Waits for nothing."""
        with self._lock:
            if self._line is None and not self._failed:
                device = "" if self._device is None else str(self._device)
                try:
                    self._line = _Line(self, [*self._arguments, device, *self._switches], self._quiet)
                except OSError as error:
                    logger.info("no process to compile with", exc_info=error)
                    self._failed = True
            return self._line is not None

    def hand_over(self, task: Task) -> int | None:
        """Hands a task over, and returns its number; None if there is nobody."""
        with self._lock:
            if not self.start() or self._line is None:
                return None
            if task.device != self._device:
                self._device = task.device
                self._line.send([nursery.DEVICE, self._device])
            self._numbers += 1
            self._entries[self._numbers] = _Entry()
            self._line.send([nursery.DO, self._numbers, task.weight, task.encode()])
            return self._numbers

    def take(self, number: int, help_: Callable[[int], Outcome] | None = None) -> Answer | None:
        """Waits for what becomes of a task if somebody is at it; else takes it back, and returns None.

        It is asked once for each task. A task that nobody has begun is this process's from now on.

        Args:
            number: of the task.
            help_: compiles the task of another number here, where there would be nothing to do but to wait.
        """
        with self._lock:
            entry, line = self._entries.get(number), self._line
        if entry is None:
            return None
        if entry.answer is None and line is not None:
            line.send([nursery.CLAIM, number])
            if not line.open:
                time.sleep(_MOMENT)
            if line.open:
                self._wait(number, entry, line, help_)
        with self._lock:
            self._entries.pop(number, None)
            if not self._entries and line is not None:
                line.send([nursery.REST])
        return entry.answer

    def _wait(self, number: int, entry: _Entry, line: _Line, help_: Callable[[int], Outcome] | None) -> None:
        """Waits until a task has an answer, or nobody is at it."""
        deadline = time.monotonic() + ANSWER_SECONDS
        while entry.answer is None:
            try:
                heard = entry.heard.get(timeout=max(deadline - time.monotonic(), 0.0))
            except queue.Empty:
                logger.info("a crew does not answer")
                line.end()
                return
            if heard == nursery.YOURS:
                return
            if isinstance(heard, Taken) and heard.spare is not None and help_ is not None:
                self._help(heard.spare, help_)
                line.send([nursery.CLAIM, number])  # there may be another one by now
                deadline = time.monotonic() + ANSWER_SECONDS
            else:
                deadline = time.monotonic() + self._patience()

    def _help(self, number: int, help_: Callable[[int], Outcome]) -> None:
        self._put(number, Taken(None))  # for another thread that may want it now
        start = time.monotonic()
        outcome = help_(number)
        self._close(number, Answer(outcome, time.monotonic() - start, here=True))

    def _patience(self) -> float:
        """Returns how long to wait for a worker: a while longer than the nursery does."""
        longest = max(nursery.LEAST_SECONDS, nursery.TIMES * self._longest) if self._longest else nursery.MOST_SECONDS
        return min(longest, nursery.MOST_SECONDS) + _MARGIN_SECONDS

    def waiting(self) -> int:
        """Returns how many tasks have no answer yet."""
        with self._lock:
            return sum(entry.answer is None for entry in self._entries.values())

    def end(self) -> None:
        """Ends all processes, whatever they do at the moment."""
        with self._lock:
            line, self._failed = self._line, True
        if line is not None:
            line.end()

    def after_fork(self) -> None:
        """Leaves the processes of its parent alone in a forked child, and does without."""
        line, self._line, self._failed, self._entries = self._line, None, True, {}
        if line is not None:
            line.leave()

    def hear(self, message: Any) -> None:
        """Takes in what the nursery says. Called by the thread that listens."""
        match message:
            case [nursery.YOURS, int(number)]:
                self._put(number, nursery.YOURS)
            case [nursery.TAKEN, int(number), spare]:
                self._put(number, Taken(spare))
            case [nursery.DONE, int(number), result, reason, passing, seconds]:
                self._close(number, Answer(Outcome(result, reason, passing), seconds))

    def _put(self, number: int, heard: Heard) -> None:
        with self._lock:
            entry = self._entries.get(number)
        if entry is not None:
            entry.heard.put(heard)

    def lose(self, line: _Line, *, failed: bool) -> None:
        """Takes note that the nursery is gone. After one that failed there is no other. Called by its listener."""
        with self._lock:
            self._failed |= failed
            if self._line is line:
                self._line = None
            open_ = [number for number, entry in self._entries.items() if entry.answer is None]
        for number in open_:
            self._close(number, NO_WORKER)

    def _close(self, number: int, answer: Answer) -> None:
        self._longest = max(self._longest, answer.seconds)
        with self._lock:
            entry = self._entries.get(number)
            if entry is not None:
                entry.answer = answer
        self._put(number, answer)
        self.answers.put((number, answer))


class _Line:
    """The connection to a nursery: a thread that speaks, one that listens.

    Args:
        crew: is told what is heard.
        arguments: of the nursery.
        quiet: whether nobody is to see what it writes to stderr.

    Raises:
        OSError: if it does not start.

    Attributes:
        open: whether the nursery hands out what it is given.
        pid: the nursery's process.
    """

    def __init__(self, crew: Crew, arguments: list[str], quiet: bool):
        self.open = False
        mine, its = make_pair()
        try:
            self._process = start_module(MODULE, [str(os.getpid()), *arguments], its, quiet=quiet)
        except OSError:
            mine.close()
            raise
        self.pid: int = self._process.pid
        self._connection = mine
        self._ended = False
        self._unsent: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._queued = 0
        self._lock = forks.lock()
        _lines.add(self)
        self._listener = threading.Thread(target=self._listen, args=(crew,), daemon=True, name="fusioncache crew")
        self._listener.start()
        threading.Thread(target=self._speak, daemon=True, name="fusioncache crew").start()

    def send(self, message: Any) -> None:
        """Sends a message, now if that goes without waiting: a compiler may keep the thread from it for long.

        Whether it arrives is heard, or not.
        """
        content = encode(message)
        with self._lock:
            if not self._queued:
                try:
                    content = content[self._connection.send(content, socket.MSG_DONTWAIT) :]
                except BlockingIOError:
                    pass
                except OSError:
                    return
            if content:
                self._queued += 1
                self._unsent.put(content)

    def end(self) -> None:
        """Ends the nursery, which ends its workers."""
        if self._ended:
            return
        self._ended = True
        _lines.discard(self)
        self._unsent.put(None)
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(END_SECONDS if self.open else 0.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def leave(self) -> None:
        """Closes what a forked child has of the connection: its parent's end is to be the only one."""
        self._ended = True
        _lines.discard(self)
        self._connection.close()
        self._process.returncode = 0  # it is no child of this process, which must not wait for it

    def _speak(self) -> None:
        while (content := self._unsent.get()) is not None:
            try:
                self._connection.sendall(content)
            except OSError:
                return
            with self._lock:
                self._queued -= 1

    def _listen(self, crew: Crew) -> None:
        try:
            with self._connection.makefile("rb") as lines:
                for line in lines:
                    message = json.loads(line)
                    self.open |= message == [nursery.OPEN]
                    crew.hear(message)
        except (OSError, ValueError) as error:
            logger.info("a crew is not understood", exc_info=error)
        finally:
            self._unsent.put(None)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_SECONDS)
            crew.lose(self, failed=self._process.returncode != 0)
            self._connection.close()


_lines: weakref.WeakSet[_Line] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """Ends all nurseries before this process does. They would end by themselves, a moment later."""
    for line in list(_lines):
        line.end()


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
