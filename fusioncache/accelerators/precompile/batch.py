"""Compiles the executables of a whole program in this process, at its first call that lacks one.

TorchInductor's C++ compiler takes as long for all kernels of a model as for two of them alone. Processes beside this
one would pay for that each. So without them the first call compiles for all calls: see ``Backend.compiled_together``.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Sequence

from fusioncache.accelerators.precompile.ahead import ExpectedAsks
from fusioncache.accelerators.precompile.entry_compiler import EntryCompiler
from fusioncache.accelerators.precompile.requests import StoredRequest
from fusioncache.accelerators.precompile.tasks import Received
from fusioncache.backends.api import Backend, backend_class
from fusioncache.cache.cache import Cache
from fusioncache.cache.peers import Ask, Helpers, Wait, find_job_store
from fusioncache.ir import Key
from fusioncache.process import forks
from fusioncache.process.collector import without_collector
from fusioncache.process.progress import progress_line
from fusioncache.store import Store

logger = logging.getLogger("fusioncache")

MOST_ASKS = 512
"""How many are compiled at once, at most."""


class BatchCompiler:
    """The ``Helpers`` of a cache whose process compiles for itself.

    Among the ranks of a job each template is compiled by one of them, and nothing is compiled together.

    Args:
        store: where what is compiled goes.
        backend: the name of the one whose regions are compiled together.
    """

    def __init__(self, store: Store, backend: str):
        self._store = store
        self._backend_name = backend
        self._starting = 0.0
        self._compiler = EntryCompiler(store, patience=0.0, releases=False, on_start=self._note_start)
        self._asks: dict[Key, Ask] = {}
        self._made: dict[Key, float] = {}
        self._expected = ExpectedAsks()
        self._lock = forks.lock()

    def hand_over(self, asks: Sequence[Ask]) -> int:
        """See ``Helpers``. None of them is compiled beside this process."""
        with self._lock:
            for ask in asks:
                if ask.request.backend == self._backend_name and len(self._asks) < MOST_ASKS:
                    self._asks.setdefault(ask.key, ask)
        return 0

    def expect(self, asks: Callable[[], Sequence[Ask]], handed_over: Callable[[int], None]) -> None:
        """See ``Helpers``."""
        self._expected.add(asks, handed_over)

    def note_missing(self) -> bool:
        """See ``Helpers``."""
        return self._expected.hand_over(self.hand_over)

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

    def _is_stored(self, ask: Ask) -> bool:
        return self._store.entry(ask.key.digest, ask.request.backend) is not None

    def _compile(self, asks: Sequence[Ask]) -> Wait:
        """Compiles for these calls. The first one waits."""
        self._asks.clear()
        first, line, start = asks[0], progress_line(), time.perf_counter()
        with self._store.take_turn_together(first.key, self._backend_name):
            asks = [ask for ask in asks if not self._is_stored(ask)]
            received = [Received(StoredRequest(ask.request, ask.instance), ask.key.digest, None) for ask in asks]

            def progress(left: int) -> None:
                line.say(f"compiling {len(asks)} regions with TorchInductor, {left} left")
                gc.collect(0)  # cycles that the compiler left, before they are taken for objects that stay

            with line.show(lambda: f"compiling {len(received)} regions"), without_collector():
                outcomes = self._compiler.compile_together(received, progress)
        starting, self._starting = self._starting, 0.0
        seconds = time.perf_counter() - start - starting
        compiled = [ask.key for ask, outcome in zip(asks, outcomes, strict=True) if outcome.result == "compiled"]
        if not compiled:
            return Wait(on_start=starting)
        # Nothing says which of them a run of the compiler for all took its time for.
        share = seconds / len(compiled)
        self._made |= dict.fromkeys(compiled, share)
        own = self._made.pop(first.key, 0.0)
        return Wait(here=own, on_others=seconds, on_start=starting)

    def _note_start(self, title: str, seconds: float) -> None:
        self._starting += seconds


def find_batch_compiler(cache: Cache, backend: str) -> Helpers | None:
    """Returns the compiler of whole programs for a cache; None if its backend compiles regions one by one."""
    store = cache.store if backend_class(backend).compiled_together is not Backend.compiled_together else None
    if store is None or store.directory is None:
        return None
    if cache.batch is None:
        cache.batch = BatchCompiler(store, backend)
    return cache.batch
