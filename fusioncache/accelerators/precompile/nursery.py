"""The process behind a crew: it imports once what workers need, forks them off, and hands out what is to be compiled.

It has no thread, opens no device, and waits for nobody but in one place. It is not the user's process that hands out,
because a compiler may hold that process's lock for seconds.

What it is told, and what it says, are messages:

    [DO, number, weight, task]     a task
    [CLAIM, number]                its owner wants it. If nobody has begun, it is YOURS; else it is TAKEN, and of those
                                   that wait another one is the owner's, which has nothing to do meanwhile
    [DEVICE, number]               workers that start from now on compile for the GPU of this number
    [REST]                         the owner has all that it wants for now: workers need not wait for more
    [OPEN]                         said once, when tasks can be handed out
    [YOURS, number]                nobody will compile it here
    [TAKEN, number, other]         a worker is at it. Nobody will compile the other here; it is null if none waits
    [DONE, number, result, reason, passing, seconds, started]     the last are those of the seconds that a compiler's
                                                                  start took
"""

from __future__ import annotations

import gc
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from fusioncache.accelerators.precompile import worker
from fusioncache.accelerators.precompile.backlog import Backlog
from fusioncache.accelerators.precompile.channel import Channel, connect_to, make_pair
from fusioncache.accelerators.precompile.offspring import Forked, can_fork, ending_with, start_module

DO, CLAIM, DEVICE, REST = "do", "claim", "device", "rest"
OPEN, YOURS, TAKEN, DONE = "open", "yours", "taken", "done"

DIED, NO_WORKER = "worker died", "no worker starts"
"""Why a task is refused that no worker answers for."""

TICK = 0.5
START_SECONDS = 120.0
"""How long a worker may take to start."""
LEAST_SECONDS, MOST_SECONDS, TIMES = 20.0, 300.0, 8.0
"""How long a worker may take for a task: so many times the longest that any took, between these."""
REST_SECONDS, IDLE_SECONDS = 1.0, 300.0
"""How long workers wait for a task, which may hold memory of a device; and how long the nursery does, with none."""
_GRACE = 3.0

Start = Callable[[socket.socket, int | None, Iterable[socket.socket]], Forked | subprocess.Popen]
"""Starts a worker, given its end of a connection, the number of its GPU, and connections that it must not keep open."""


def allow_seconds(longest: float) -> float:
    """Returns how long a worker may take for a task where this is the longest that any took; 0 if none was done."""
    return min(max(LEAST_SECONDS, TIMES * longest), MOST_SECONDS) if longest else MOST_SECONDS


@dataclass(slots=True)
class _Worker:
    """A worker.

    Attributes:
        process: it.
        channel: the way to it.
        connection: the same.
        since: when it began with what it is at.
        ready: whether it has started.
        task: the number of what it is at; None if it is at nothing.
    """

    process: Forked | subprocess.Popen
    channel: Channel
    connection: socket.socket
    since: float
    ready: bool = False
    task: int | None = None


class Nursery:
    """Hands out tasks to workers.

    Args:
        connection: to the process that it works for.
        jobs: how many workers there may be.
        start: starts one.
        is_alone: tells whether the process that it works for is gone.
        device: the number of the GPU to compile for; None if it is for none, or nobody knows yet.
        early: whether workers start before there is a task, because there will be many.
        clock: returns the seconds of a clock that only goes forward.
    """

    def __init__(
        self,
        connection: socket.socket,
        jobs: int,
        start: Start,
        is_alone: Callable[[], bool],
        *,
        device: int | None = None,
        early: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._clock = clock
        self._connection = connection
        self._owner = Channel(connection)
        self._jobs = jobs
        self._start = start
        self._is_alone = is_alone
        self._device = device
        self._waits_for_first = early
        self._backlog = Backlog()
        self._workers: list[_Worker] = []
        self._ending: list[tuple[float, Forked | subprocess.Popen]] = []
        self._longest = 0.0
        self._idle_since = self._clock()
        self._selector = selectors.DefaultSelector()
        self._over = False

    def run(self) -> None:
        """Works until the other process is gone, or has wanted nothing for long."""
        self._selector.register(self._owner, selectors.EVENT_READ)
        try:
            # What was claimed before anybody could begin with it is not begun.
            self._listen()
            self._tell([OPEN])
            if self._waits_for_first:
                self._start_workers(self._jobs)
            while not self._over:
                self._work()
        except OSError:
            pass  # the owner is gone
        finally:
            self._end()

    def _work(self) -> None:
        self._assign()
        self._selector.modify(self._owner, selectors.EVENT_READ | selectors.EVENT_WRITE * self._owner.full)
        for key, _ in self._selector.select(TICK):
            if key.fileobj is self._owner:
                self._owner.flush()
                self._listen()
            else:
                self._hear(key.data)
        self._end_late()
        self._over |= self._is_alone() or self._has_idled(IDLE_SECONDS)

    def _listen(self) -> None:
        """Does what the owner says."""
        messages = self._owner.receive()
        if messages is None:
            self._over = True
        for what, *content in messages or ():
            if what == DO:
                self._backlog.add(*content)
                self._waits_for_first = False
            elif what == DEVICE:
                self._device = content[0]
            elif what == CLAIM:
                self._answer(content[0])
            elif what == REST and self._has_idled(0.0):
                self._dismiss()

    def _answer(self, number: int) -> None:
        """Tells the owner whether it may compile this itself. Of what is done it was told before."""
        if self._backlog.take(number):
            self._tell([YOURS, number])
        elif any(each.task == number for each in self._workers):
            spare = self._backlog.take_heaviest()
            self._tell([TAKEN, number, spare and spare[0]])

    def _tell(self, message: list[Any]) -> None:
        self._owner.send(message)

    def _refuse(self, number: int, reason: str) -> None:
        self._tell([DONE, number, "refused", reason, True, 0.0, 0.0])

    def _has_idled(self, seconds: float) -> bool:
        busy = len(self._backlog) or any(each.task is not None for each in self._workers)
        now = self._clock()
        if busy:
            self._idle_since = now
        return not busy and now - self._idle_since >= seconds

    def _assign(self) -> None:
        """Gives what waits to workers that wait, and starts more of them if there are too few."""
        for each in [each for each in self._workers if each.ready and each.task is None]:
            found = self._backlog.take_heaviest()
            if found is None:
                break
            each.task, task = found
            each.since = self._clock()
            try:
                each.channel.send(task)
                self._select(each)
            except OSError:
                self._bury(each)
        self._start_workers(len(self._backlog))
        if not self._jobs:
            for number in self._backlog.take_all():
                self._refuse(number, NO_WORKER)

    def _start_workers(self, tasks: int) -> None:
        """Starts a worker for each task that no other one is coming for, as many as there may be."""
        coming = sum(not each.ready for each in self._workers)
        while tasks > coming and len(self._workers) < self._jobs and self._start_one():
            coming += 1

    def _start_one(self) -> bool:
        mine, its = make_pair()
        try:
            process = self._start(
                its, self._device, [mine, self._connection, *(each.connection for each in self._workers)]
            )
        except OSError:
            self._jobs -= 1
            mine.close()
            return False
        finally:
            its.close()
        started = _Worker(process, Channel(mine), mine, self._clock())
        self._workers.append(started)
        self._selector.register(started.channel, selectors.EVENT_READ, started)
        return True

    def _select(self, each: _Worker) -> None:
        self._selector.modify(each.channel, selectors.EVENT_READ | selectors.EVENT_WRITE * each.channel.full, each)

    def _hear(self, each: _Worker) -> None:
        """Hears a worker, or sends it what it was not ready to take at once."""
        try:
            each.channel.flush()
            messages = each.channel.receive()
            if messages is None:
                self._bury(each)
                return
            self._select(each)
            for message in messages:
                self._take_in(each, message)
        except (OSError, ValueError):
            self._bury(each)

    def _take_in(self, each: _Worker, message: Any) -> None:
        match message:
            case [worker.READY]:
                each.ready = True
            case [worker.UNFIT, reason]:
                print(f"fusioncache: a worker is of no use: {reason}", file=sys.stderr)
            case [str(result), str(reason), bool(passing), float(seconds), float(started)] if each.task is not None:
                number, each.task = each.task, None
                self._longest = max(self._longest, seconds)
                self._tell([DONE, number, result, reason, passing, seconds, started])
            case _:
                raise ValueError("a worker that says something else")

    def _bury(self, each: _Worker) -> None:
        """Takes note that a worker is gone, or of no use: it costs its task. One that never began is not replaced."""
        self._let_go(each, grace=0.0)
        if each.task is not None:
            self._refuse(each.task, DIED)
        if not each.ready:
            self._jobs -= 1

    def _let_go(self, each: _Worker, grace: float) -> None:
        """Has a worker end. After the seconds of grace it is ended."""
        self._selector.unregister(each.channel)
        each.channel.close()
        self._workers.remove(each)
        self._ending.append((self._clock() + grace, each.process))

    def _dismiss(self) -> None:
        """Has all workers end that wait for something to do."""
        for each in [each for each in self._workers if each.ready and each.task is None]:
            self._let_go(each, _GRACE)

    def _end_late(self) -> None:
        """Ends workers that take too long, and those that rest."""
        now = self._clock()
        patience = allow_seconds(self._longest)
        for each in list(self._workers):
            limit = START_SECONDS if not each.ready else patience if each.task is not None else float("inf")
            if now - each.since > limit:
                self._bury(each)
        if self._has_idled(REST_SECONDS) and not self._waits_for_first:
            self._dismiss()
        for late in [late for late in self._ending if late[0] <= now]:
            late[1].kill()
        self._ending = [each for each in self._ending if each[1].poll() is None]

    def _end(self) -> None:
        """Ends all workers: at once those that are at something, after a while those that do not end by themselves."""
        for each in list(self._workers):
            self._let_go(each, _GRACE if each.ready and each.task is None else 0.0)
        while self._ending:
            self._end_late()
            time.sleep(0.01)


def main(
    descriptor: str, parent: str, directory: str, backend: str, jobs: str, device: str, fork: str, early: str
) -> None:
    """Works as the process behind a crew.

    Args:
        descriptor: of the connection to the process that it works for.
        parent: that process.
        directory: of the store.
        backend: that most is compiled with.
        jobs: how many workers there may be.
        device: the number of the GPU to compile for; empty if nobody knows yet.
        fork: whether workers may be forked off: 0 or 1.
        early: whether workers start before there is a task: 0 or 1.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever interrupts means the owner, and hears it end
    connection, owner = connect_to(int(descriptor)), int(parent)
    forks = fork == "1" and can_fork()
    if forks:
        with ending_with(owner), suppress(Exception):
            worker.prepare(backend)
        gc.collect()
        gc.freeze()  # what is never looked at by a collector is never copied for a child

    def start_worker(
        its: socket.socket, number: int | None, others: Iterable[socket.socket]
    ) -> Forked | subprocess.Popen:
        if forks:
            return Forked(lambda: worker.work(its, directory, backend, number), others)
        arguments = [str(os.getpid()), directory, backend, "" if number is None else str(number)]
        return start_module("fusioncache.accelerators.precompile.worker", arguments, its, quiet=False)

    number = int(device) if device else None
    is_alone = lambda: os.getppid() != owner  # noqa: E731
    Nursery(connection, int(jobs), start_worker, is_alone, device=number, early=early == "1").run()
