"""Compiles what calls are going to ask for: in other processes while this one traces, or together at the first call.

TorchInductor's C++ compiler takes as long for all kernels of a model as for two of them alone, which each other process
would pay for. So without them the first call compiles for all calls: see ``Backend.compiled_together``.
"""

from __future__ import annotations

import gc
import logging
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from pathlib import Path

from fusioncache.accelerators.precompile.arguments import gpu_in_use
from fusioncache.accelerators.precompile.entry_compiler import EntryCompiler, TaskOutcome
from fusioncache.accelerators.precompile.pool import CompilePool
from fusioncache.accelerators.precompile.requests import CompileTask
from fusioncache.backends.api import Backend, backend_class
from fusioncache.cache.cache import Cache
from fusioncache.cache.peers import Ask, Helpers, Wait, find_job_store
from fusioncache.ir import Key
from fusioncache.process import forks
from fusioncache.process.collector import without_collector
from fusioncache.process.warning import progress_line
from fusioncache.store import Store
from fusioncache.store.locks import TOO_LONG

logger = logging.getLogger("fusioncache")

MOST_EXPECTED = 64
"""How many loaded programs are remembered with what their calls may ask for."""
MOST_ASKS = 512
"""How many regions are compiled together, at most."""
WAIT_SECONDS = 320.0
"""How long to wait for a worker, which is longer than one may hang, before the pool is given up."""
_LOOK_SECONDS = 0.05


class AskHelpers(ABC):
    """``Helpers`` that put what they compile into a store.

    Args:
        store: it.
    """

    def __init__(self, store: Store):
        self._store = store
        self._expected: deque[tuple[Callable[[], Sequence[Ask]], Callable[[int], None]]] = deque(maxlen=MOST_EXPECTED)
        self._lock = forks.lock()
        self._starting = 0.0
        # Its memory stays with torch: this process needs it in a moment.
        self._compiler = EntryCompiler(store, patience=0.0, releases=False, on_start=self._note_start)

    @abstractmethod
    def hand_over(self, asks: Sequence[Ask]) -> int:
        """See ``Helpers``."""

    def expect(self, asks: Callable[[], Sequence[Ask]], handed_over: Callable[[int], None]) -> None:
        """See ``Helpers``."""
        with self._lock:
            self._expected.append((asks, handed_over))

    def note_missing(self) -> bool:
        """See ``Helpers``."""
        with self._lock:
            expected = [*self._expected]
            self._expected.clear()
        try:
            for asks, handed_over in expected:
                handed_over(self.hand_over(asks()))
        except Exception as error:  # whatever it is, this process compiles for itself
            logger.info("nothing that was expected is compiled ahead", exc_info=error)
        return bool(expected)

    def _is_stored(self, ask: Ask) -> bool:
        return self._store.entry(ask.key.digest, ask.request.backend) is not None

    def _note_start(self, title: str, seconds: float) -> None:
        self._starting += seconds


def _make_task(ask: Ask, device: int | None) -> CompileTask:
    return CompileTask(ask.request, ask.instance, ask.key.digest, device)


class PoolHelpers(AskHelpers):
    """Has other processes compile. The store's turn decides which process compiles what: see ``Store.take_turn``.

    Args:
        store: where what is compiled will be.
        pool: of the processes.
    """

    def __init__(self, store: Store, pool: CompilePool):
        super().__init__(store)
        self._pool = pool
        self._tasks: dict[Key, tuple[Ask, Future[TaskOutcome]]] = {}
        self._tried: dict[Key, float] = {}
        forks.register(self)

    def hand_over(self, asks: Sequence[Ask]) -> int:
        """See ``Helpers``."""
        device = gpu_in_use()
        with self._lock:
            wanted = {ask.key: ask for ask in asks if ask.key not in self._tasks}
            missing = [(ask, _make_task(ask, device)) for ask in wanted.values() if not self._is_stored(ask)]
            if not missing or not self._pool.start():
                return 0
            missing.sort(key=lambda each: each[1].weight, reverse=True)
            futures = self._pool.submit([task for _, task in missing])
            self._tasks |= {ask.key: (ask, future) for (ask, _), future in zip(missing, futures, strict=True)}
            return len(missing)

    def is_done(self, key: Key) -> bool:
        """See ``Helpers``."""
        found = self._tasks.get(key)
        return found is None or found[1].done() or bool(self._tried.get(key))

    def wait_for(self, key: Key) -> Wait:
        """See ``Helpers``."""
        with self._lock:
            found, here = self._tasks.pop(key, None), self._tried.pop(key, 0.0)
        try:
            return Wait(here=here) if here or found is None else self._wait_for(*found)
        except Exception as error:  # whatever it is, this process can compile
            logger.info("other processes are of no use", exc_info=error)
            return Wait()

    def waiting(self) -> int:
        """Returns how many of those that were handed over are not compiled yet."""
        with self._lock:
            return sum(not future.done() for _, future in self._tasks.values())

    def after_fork(self) -> None:
        """Forgets, in a forked child, what the parent is told of."""
        self._tasks, self._tried = {}, {}

    def _wait_for(self, ask: Ask, future: Future[TaskOutcome]) -> Wait:
        """Waits while another process compiles this, and compiles something else meanwhile."""
        begun, starting, others = time.perf_counter(), self._starting, 0.0
        while not future.done() and self._is_taken(ask):
            seconds = self._compile_another()
            others += seconds
            if time.perf_counter() - begun - others > WAIT_SECONDS:
                self._pool.end()
                break
            if not seconds:
                wait([future], _LOOK_SECONDS)
        if self._is_stored(ask):
            wait([future], _LOOK_SECONDS)  # the news of it may be on its way
        started = self._starting - starting
        if not future.done() or future.result().result == "refused":
            return Wait(on_others=others, on_start=started)
        started += start_within(time.perf_counter() - begun - others - started, future.result())
        return Wait(beside=True, on_others=others, on_start=started)

    def _is_taken(self, ask: Ask) -> bool:
        """Returns whether another process or thread is at it."""
        with self._store.take_turn(ask.key, ask.request.backend, 0.0) as turn:
            return turn.alone == TOO_LONG

    def _compile_another(self) -> float:
        """Compiles here what no process has begun; returns the seconds without a compiler's start, 0 for nothing."""
        with self._lock:
            spare = [(key, ask) for key, (ask, future) in self._tasks.items() if not future.done()]
            untried = next((pair for pair in spare if pair[0] not in self._tried), None)
            if untried is None:
                return 0.0
            key, ask = untried
            self._tried[key] = 0.0
        begun, starting = time.perf_counter(), self._starting
        outcome = self._compiler.compile(_make_task(ask, gpu_in_use()))
        seconds = time.perf_counter() - begun - (self._starting - starting)
        with self._lock:
            if outcome.result == "compiled" and key in self._tried:
                self._tried[key] = seconds
        return seconds


def start_within(waited: float, outcome: TaskOutcome) -> float:
    """Returns the seconds of a wait in which the worker that answered started its compiler, before it compiled."""
    return min(max(waited - (outcome.seconds - outcome.on_start), 0.0), outcome.on_start)


class BatchCompiler(AskHelpers):
    """Compiles here, all together at the first call that lacks its executable.

    Among the ranks of a job each template is compiled by one of them, and nothing is compiled together.

    Args:
        store: where what is compiled goes.
        backend: the name of the one whose regions are compiled together.
    """

    def __init__(self, store: Store, backend: str):
        super().__init__(store)
        self._backend_name = backend
        self._asks: dict[Key, Ask] = {}
        self._made: dict[Key, float] = {}

    def hand_over(self, asks: Sequence[Ask]) -> int:
        """See ``Helpers``. None of them is compiled beside this process."""
        with self._lock:
            for ask in asks:
                if ask.request.backend == self._backend_name and len(self._asks) < MOST_ASKS:
                    self._asks.setdefault(ask.key, ask)
        return 0

    def is_done(self, key: Key) -> bool:
        """See ``Helpers``."""
        return key not in self._asks

    def wait_for(self, key: Key) -> Wait:
        """Compiles all that was handed over, if this is among it and the store lacks it. See ``Helpers``."""
        with self._lock:
            ask = self._asks.pop(key, None)
            if ask is not None:
                others = [] if self._is_stored(ask) or find_job_store() is not None else [*self._asks.values()]
                if others:
                    return self._compile([ask, *others])
            seconds = self._made.pop(key, None)
        return Wait() if seconds is None else Wait(here=seconds)

    def _compile(self, asks: Sequence[Ask]) -> Wait:
        """Compiles for these calls. The first one waits."""
        self._asks.clear()
        first, line, start = asks[0], progress_line(), time.perf_counter()
        with self._store.take_turn_together(first.key, self._backend_name):
            asks = [ask for ask in asks if not self._is_stored(ask)]

            def progress(left: int) -> None:
                line.say(f"compiling {len(asks)} regions with TorchInductor, {left} left")
                gc.collect(0)  # cycles that the compiler left, before they are taken for objects that stay

            with line.show(lambda: f"compiling {len(asks)} regions"), without_collector():
                outcomes = self._compiler.compile_together([_make_task(ask, None) for ask in asks], progress)
        starting, self._starting = self._starting, 0.0
        seconds = time.perf_counter() - start - starting
        compiled = [ask.key for ask, outcome in zip(asks, outcomes, strict=True) if outcome.result == "compiled"]
        if not compiled:
            return Wait(on_start=starting)
        # Nothing says which of them a run of the compiler for all took its time for.
        self._made |= dict.fromkeys(compiled, seconds / len(compiled))
        return Wait(here=self._made.pop(first.key, 0.0), on_others=seconds, on_start=starting)


pools: dict[Path, CompilePool] = {}
"""The pools of this process, by the directory of their store."""
_making = forks.lock()


def find_helpers(cache: Cache, jobs: int, backend: str) -> Helpers | None:
    """Returns what has other processes compile for a cache, which start now if they are not there; None without any.

    Args:
        cache: it. What is compiled goes through its store.
        jobs: how many processes, at most. The first one to ask for a store decides.
        backend: that most is compiled with.
    """
    store = cache.store if jobs else None
    if store is None or store.directory is None or not keeps_anything(backend):
        return None
    if cache.helpers is None:
        with _making:
            pool = pools.get(store.directory)
            if pool is None or pool.has_failed:
                pools[store.directory] = pool = CompilePool(store.directory, jobs, backend)
                pool.start()
                device = gpu_in_use()
                # Of a store that has something most may be there already, and then no device is opened for it.
                if device is not None and not store.entries():
                    pool.open_early(device)
        cache.helpers = PoolHelpers(store, pool)
    return cache.helpers


def find_batch_compiler(cache: Cache, backend: str) -> Helpers | None:
    """Returns the compiler of whole programs for a cache; None if its backend compiles regions one by one."""
    store = cache.store if backend_class(backend).compiled_together is not Backend.compiled_together else None
    if store is None or store.directory is None:
        return None
    if cache.batch is None:
        cache.batch = BatchCompiler(store, backend)
    return cache.batch


def keeps_anything(backend: str) -> bool:
    """Returns whether a backend persists what it compiles. It is not made, because it might open a device."""
    return backend_class(backend).persist is not Backend.persist
