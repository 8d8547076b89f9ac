"""A process that compiles what it is given, one task after the other, and says what became of each."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from contextlib import suppress

from fusioncache.accelerators.precompile.channel import connect_to, encode
from fusioncache.accelerators.precompile.entry_compiler import EntryCompiler, Outcome
from fusioncache.accelerators.precompile.offspring import end_with
from fusioncache.accelerators.precompile.tasks import decode
from fusioncache.backends.api import BACKENDS, backend_class
from fusioncache.store import Store

READY, UNFIT = "ready", "unfit"
"""What a worker says first: that it can begin, or why it never will."""


def main(descriptor: str, parent: str, directory: str, backend: str, device: str) -> None:
    """Works as a process that was started anew.

    Args:
        descriptor: of the connection.
        parent: the process that started it, which it does not outlive.
        directory: of the store.
        backend: that most is compiled with.
        device: the number of the GPU to compile on; empty if that is for none.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with(int(parent))
    with suppress(Exception):
        prepare(backend)
    work(connect_to(int(descriptor)), directory, backend, int(device) if device else None)


def prepare(backend: str) -> None:
    """Imports what compiling needs, without opening a device.

    Raises:
        Exception: whatever is raised where that cannot be imported. The worker will say the same of each task.
    """
    if backend in BACKENDS:
        backend_class(backend).prepare()


def work(connection: socket.socket, directory: str, backend: str, device: int | None) -> None:
    """Works until the other end is gone."""
    _leave_streams()
    connection.setblocking(True)
    with connection, connection.makefile("rb") as lines:
        try:
            if backend in BACKENDS:
                backend_class(backend).open_device(device)
        except Exception as error:  # whatever it is, this process is of no use
            connection.sendall(encode([UNFIT, f"{type(error).__name__}: {error}"]))
            return
        store, starts = Store.open(directory), [0.0]

        def note_start(title: str, seconds: float) -> None:
            starts.append(seconds)

        compilers = EntryCompiler(store, on_start=note_start), EntryCompiler(store, patience=0, on_start=note_start)
        connection.sendall(encode([READY]))
        for line in lines:
            starts[:], start = [0.0], time.perf_counter()
            outcome = _compile(line, *compilers)
            seconds = time.perf_counter() - start
            connection.sendall(encode([outcome.result, outcome.reason, outcome.passing, seconds, sum(starts)]))


def _compile(line: bytes, of_entries: EntryCompiler, of_requests: EntryCompiler) -> Outcome:
    try:
        task = decode(json.loads(line))
    except ValueError as error:
        return Outcome("refused", f"not understood: {error}")
    return of_entries.compile(task) if isinstance(task, str) else of_requests.compile_received(task)


def _leave_streams() -> None:
    """Compilers and whatever they start may print and read: that is not for the streams of whoever waits."""
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
