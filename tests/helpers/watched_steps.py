"""Takes steps in a process of its own, and prints what of ours came in between in the later ones, as JSON.

Python tells of files, compilers, processes and threads; that nothing tells is what the test is after. No lock of the
package is taken, as steps go on while another thread has all of them.
"""

import gc
import json
import logging
import sys
import threading
import warnings
from collections import Counter
from contextlib import ExitStack

import thunder
import torch
from models import Block

import fusioncache
from fusioncache.cache.backend_executables import SOON
from fusioncache.process import forks

_STEPS = 30
_PATIENCE = 240.0


class Watch:
    """What happened while it watched.

    Attributes:
        events: audit events, records of loggers, warnings and collections, by name.
    """

    def __init__(self):
        self.events = Counter()
        self._is_watching = False
        sys.addaudithook(self._hear)
        logging.getLogger().addHandler(self._make_handler())
        logging.getLogger().setLevel(logging.DEBUG)
        gc.callbacks.append(lambda phase, _: self._note("gc", phase))
        warnings.showwarning = lambda message, *_args, **_options: self._note("warning", message)

    def _make_handler(self):
        handler = logging.Handler()
        handler.emit = lambda record: self._note("log", record.getMessage())
        return handler

    def _hear(self, event, args):
        if event != "builtins.id":
            self._note(event, args[:1])

    def _note(self, what, detail):
        if self._is_watching:
            self.events[f"{what} {detail}"[:200]] += 1

    def __enter__(self):
        gc.disable()  # what is collected now is asked for
        self._is_watching = True

    def __exit__(self, *_):
        self._is_watching = False
        gc.enable()


def run_while_locked(steps):
    """Takes steps while another thread has every lock of the package; tells whether they came to an end.

    The thread that takes them has done so before: its first launch of a stored kernel lays out what that is given.
    """
    ready, done, held, free = (threading.Event() for _ in range(4))

    def hold():
        with ExitStack() as stack:
            for lock in list(forks.locks):
                stack.enter_context(lock)
            held.set()
            free.wait(_PATIENCE)

    def take():
        steps()
        ready.set()
        held.wait()
        steps()
        done.set()

    threading.Thread(target=take, daemon=True).start()
    ready.wait()
    holder = threading.Thread(target=hold)
    holder.start()
    is_done = done.wait(_PATIENCE / 2)
    free.set()
    holder.join()
    return is_done


def main():
    torch.set_num_threads(1)
    backend, sizes = sys.argv[1], json.loads(sys.argv[2])
    device = "cuda" if backend == "nvfuser" else "cpu"
    model = Block().to(device)
    transform = fusioncache.FusionCache(backend=backend, jobs=0)
    compiled = thunder.jit(model, executors=fusioncache.executors(), transforms=[transform])
    inputs = [torch.ones(size, 3, 16, device=device) for size in sizes]

    def steps(count):
        for _ in range(count):
            for x in inputs:
                compiled(x).sum().backward()
                model.zero_grad()

    watch = Watch()
    steps(SOON + 2)
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):  # writes what the first steps did, shortly after them
            thread.join()
    before = transform.stats()
    with watch:
        steps(_STEPS)
    is_free = run_while_locked(lambda: steps(2))
    gc.collect()
    gc.disable()
    steps(2)
    garbage = gc.collect()
    same = before == transform.stats()
    found = {"events": watch.events, "locks": len(forks.locks), "free": is_free, "garbage": garbage, "same": same}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
