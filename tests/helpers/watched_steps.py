"""Takes steps in its own process, and prints as JSON the events that interrupt later steps."""

import gc
import json
import logging
import sys
import threading
import warnings
from collections import Counter
from contextlib import ExitStack, contextmanager

import torch
from models import Block, compile_with

from fusioncache.process import forks

_FIRST, _STEPS = 10, 30
_PATIENCE = 120.0


@contextmanager
def watch():
    """Yields a counter of audit events, log records, warnings and garbage collections during the body."""
    events, is_watching = Counter(), True

    def note(what, detail):
        if is_watching and what != "builtins.id":
            events[f"{what} {detail}"[:200]] += 1

    handler = logging.Handler()
    handler.emit = lambda record: note("log", record.getMessage())
    logging.getLogger().addHandler(handler)
    logging.getLogger().setLevel(logging.DEBUG)
    warnings.showwarning = lambda message, *_args, **_options: note("warning", message)
    gc.disable()  # only explicit collections happen now
    gc.callbacks.append(lambda phase, _: note("gc", phase))
    sys.addaudithook(lambda event, args: note(event, args[:1]))
    yield events
    is_watching = False
    gc.enable()


def run_while_locked(steps):
    """Takes steps, then takes them while another thread holds every lock of the package; True if they end."""
    ready, done, held = (threading.Event() for _ in range(3))

    def take():
        steps()
        ready.set()
        held.wait()
        steps()
        done.set()

    def hold():
        ready.wait()
        with ExitStack() as stack:
            for lock in list(forks.locks):
                stack.enter_context(lock)
            held.set()
            done.wait(_PATIENCE)
            return done.is_set()

    threading.Thread(target=take, daemon=True).start()
    return hold()


def main():
    torch.set_num_threads(1)
    backend, sizes = sys.argv[1], json.loads(sys.argv[2])
    device = "cuda" if backend == "nvfuser" else "cpu"
    model = Block().to(device)
    compiled, transform = compile_with(model, backend, jobs=0)
    inputs = [torch.ones(size, 3, 16, device=device) for size in sizes]

    def steps(count):
        for _ in range(count):
            for x in inputs:
                compiled(x).sum().backward()
                model.zero_grad()

    steps(_FIRST)
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):  # writes what the first steps did, shortly after them
            thread.join()
    before = transform.stats()
    with watch() as events:
        steps(_STEPS)
    is_free = run_while_locked(lambda: steps(2))
    gc.collect()
    gc.disable()
    steps(2)
    found = {"events": events, "locks": len(forks.locks), "free": is_free, "garbage": gc.collect()}
    print(json.dumps({**found, "same": before == transform.stats()}))


if __name__ == "__main__":
    main()
