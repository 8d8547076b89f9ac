"""What is compiled for this process by its crew while it traces, and how its calls get it."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from fusioncache.accelerators.precompile.arguments import gpu_in_use
from fusioncache.accelerators.precompile.crew import Answer, Crew
from fusioncache.accelerators.precompile.entry_compiler import EntryCompiler, Outcome
from fusioncache.accelerators.precompile.requests import StoredRequest
from fusioncache.accelerators.precompile.tasks import Received, RequestTask
from fusioncache.backends.api import Backend, backend_class
from fusioncache.cache.cache import Cache
from fusioncache.cache.peers import Ask, Helpers, Wait
from fusioncache.ir import Key
from fusioncache.process import forks
from fusioncache.store import Store

logger = logging.getLogger("fusioncache")

MOST_EXPECTED = 64
"""Of how many loaded programs it is held what their calls may ask for."""

GONE = Outcome("refused", "no longer needed")


class ExpectedAsks:
    """The asks of loaded programs, which are handed over once an executable is missing."""

    def __init__(self) -> None:
        self._expected: deque[tuple[Callable[[], Sequence[Ask]], Callable[[int], None]]] = deque(maxlen=MOST_EXPECTED)
        self._lock = forks.lock()

    def add(self, asks: Callable[[], Sequence[Ask]], handed_over: Callable[[int], None]) -> None:
        """Adds those of a program: see ``Helpers.expect``."""
        with self._lock:
            self._expected.append((asks, handed_over))

    def hand_over(self, hand_over: Callable[[Sequence[Ask]], int]) -> bool:
        """Hands all over, and returns whether there were any."""
        with self._lock:
            expected = [*self._expected]
            self._expected.clear()
        try:
            for asks, handed_over in expected:
                handed_over(hand_over(asks()))
        except Exception as error:  # whatever it is, this process compiles for itself
            logger.info("nothing that was expected is compiled beside", exc_info=error)
        return bool(expected)


class CrewHelpers:
    """The ``Helpers`` of a cache: a crew for its store.

    Args:
        store: where what is compiled will be.
        crew: compiles.
    """

    def __init__(self, store: Store, crew: Crew):
        self._store = store
        self._crew = crew
        self._numbers: dict[Key, int] = {}
        self._asks: dict[int, Ask] = {}
        self._expected = ExpectedAsks()
        # Its memory stays with torch: this process needs it in a moment.
        self._compiler = EntryCompiler(store, patience=0.0, releases=False, on_start=self._note_start)
        self._starting = 0.0
        self._lock = forks.lock()

    def hand_over(self, asks: Sequence[Ask]) -> int:
        """See ``Helpers``."""
        wanted = {ask.key: ask for ask in asks if ask.key not in self._numbers}
        missing = [ask for key, ask in wanted.items() if self._store.entry(key.digest, ask.request.backend) is None]
        for count, ask in enumerate(missing):
            # Under the lock, because whoever hears of the number looks here for what it is.
            with self._lock:
                number = self._crew.hand_over(RequestTask(ask, gpu_in_use()))
                if number is None:
                    return count
                self._numbers[ask.key], self._asks[number] = number, ask
        return len(missing)

    def expect(self, asks: Callable[[], Sequence[Ask]], handed_over: Callable[[int], None]) -> None:
        """See ``Helpers``."""
        self._expected.add(asks, handed_over)

    def note_missing(self) -> bool:
        """See ``Helpers``."""
        return self._expected.hand_over(self.hand_over)

    def is_done(self, key: Key) -> bool:
        """See ``Helpers``."""
        with self._lock:
            number = self._numbers.get(key)
        return number is None or self._crew.is_done(number)

    def wait_for(self, key: Key) -> Wait:
        """See ``Helpers``."""
        with self._lock:
            number = self._numbers.pop(key, None)
        try:
            return Wait() if number is None else self._wait_for(number)
        except Exception as error:  # whatever it is, this process can compile
            logger.info("a crew is of no use", exc_info=error)
            return Wait()

    def _wait_for(self, number: int) -> Wait:
        helped, begun, starting = list[float](), time.perf_counter(), self._starting
        answer = self._crew.take(number, lambda other: self._compile(other, helped))
        with self._lock:
            self._asks.pop(number, None)
        others, started = sum(helped), self._starting - starting
        if answer is None or answer.outcome.result == "refused":
            return Wait(on_others=others, on_start=started)
        if answer.here:
            return Wait(here=answer.seconds, on_others=others, on_start=started)
        started += start_within(time.perf_counter() - begun - others - started, answer)
        return Wait(beside=True, on_others=others, on_start=started)

    def waiting(self) -> int:
        """Returns how many of those that were handed over are not compiled yet."""
        return self._crew.waiting()

    def _note_start(self, title: str, seconds: float) -> None:
        self._starting += seconds

    def _compile(self, number: int, took: list[float]) -> Answer:
        """Compiles here what nobody has begun, while this process waits for something else."""
        with self._lock:
            ask = self._asks.get(number)
        if ask is None:
            return Answer(GONE, 0.0, here=True)
        start, starting = time.perf_counter(), self._starting
        stored = StoredRequest(ask.request, ask.instance)
        outcome = self._compiler.compile_received(Received(stored, ask.key.digest, gpu_in_use()))
        took.append(time.perf_counter() - start - (self._starting - starting))
        return Answer(outcome, took[-1], here=True)


def start_within(waited: float, answer: Answer) -> float:
    """Returns the seconds of a wait in which the worker that answered started its compiler, before it compiled."""
    return min(max(waited - (answer.seconds - answer.started), 0.0), answer.started)


def find_helpers(cache: Cache, jobs: int, backend: str) -> Helpers | None:
    """Returns those who compile for a cache, who start now if they are not there; None if there are none.

    Args:
        cache: it. Its store is what they answer through.
        jobs: how many processes, at most. Who asks first for a store decides.
        backend: that most is compiled with.
    """
    store = cache.store if jobs else None
    if store is None or store.directory is None or not keeps_anything(backend):
        return None
    if cache.helpers is None:
        cache.helpers = CrewHelpers(store, _find_crew(store, store.directory, jobs, backend))
    return cache.helpers


crews: dict[Path, Crew] = {}
"""The crews of this process, by the directory of their store."""
_making = forks.lock()


def keeps_anything(backend: str) -> bool:
    """Tells whether a backend persists what it compiles. It is not made, because it might open a device."""
    return backend_class(backend).persist is not Backend.persist


def _find_crew(store: Store, directory: Path, jobs: int, backend: str) -> Crew:
    """Returns the crew of this process for a store, which is made if there is none or its time is over."""
    with _making:
        if directory not in crews or crews[directory].over:
            device = gpu_in_use()
            # Of a store that has something most may be there already, and then no device is opened for it.
            early = device is not None and store.is_empty
            crews[directory] = Crew(directory, jobs, backend, device, early=early)
            crews[directory].start()
        return crews[directory]
