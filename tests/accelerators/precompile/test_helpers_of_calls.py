"""What calls ask of a pool: what they wait for comes first, and waiting for a compiler's start is no part of a load."""

from concurrent.futures import Future
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from store_processes import make_unary_region

from fusioncache.accelerators.precompile import ahead
from fusioncache.accelerators.precompile.ahead import PoolHelpers
from fusioncache.accelerators.precompile.entry_compiler import NO_WORKER, TaskOutcome
from fusioncache.cache.peers import Ask, Wait
from fusioncache.ir import Key
from fusioncache.store.locks import TOO_LONG
from fusioncache.store.store import Turn


class Pool:
    """A pool whose tasks end when the test says so."""

    jobs, has_failed = 2, False

    def __init__(self) -> None:
        self.tasks: list[Future[TaskOutcome]] = []

    def start(self) -> bool:
        return True

    def submit(self, tasks: Any) -> list[Future[TaskOutcome]]:
        futures: list[Future[TaskOutcome]] = [Future() for _ in tasks]
        self.tasks += futures
        return futures


def make_ask(number: int = 0) -> Any:
    request = SimpleNamespace(backend="inductor", graph=make_unary_region())
    return Ask(Key(str(number), "", ()), request, None)  # type: ignore[arg-type]


def test_what_calls_wait_for_comes_before_lengths_to_come():
    asks, pool, done = [make_ask(number) for number in range(8)], Pool(), []
    helpers: Any = PoolHelpers(SimpleNamespace(entry=lambda *of: None), pool)  # type: ignore[arg-type]
    helpers.hand_over(asks[:1])
    assert helpers.hand_over_later(asks, lambda: done.append(1)) == len(asks) - 1
    assert len(pool.tasks) == 1  # a call waits for that
    pool.tasks[0].set_result(TaskOutcome("compiled"))
    assert len(pool.tasks) == 3  # then one for each worker
    pool.tasks[1].set_result(TaskOutcome("refused", "other settings here"))
    assert len(pool.tasks) == 4 and len(done) == 1
    helpers.hand_over(asks[-1:])
    assert len(pool.tasks) == 5
    pool.tasks[2].set_result(TaskOutcome("compiled"))
    assert len(pool.tasks) == 5 and len(done) == 2
    pool.tasks[4].set_result(NO_WORKER)
    pool.tasks[5].set_result(NO_WORKER)
    assert len(pool.tasks) == 6  # no worker starts, and nothing is handed over any more


def test_what_a_call_waited_for_a_start_is_known(monkeypatch):
    """Another process is at everything, and done at the second look."""
    now, pool = [100.0], Pool()
    monkeypatch.setattr(ahead.time, "perf_counter", lambda: now[0])

    @contextmanager
    def take_turn(*of):
        if now[0] > 100.0:
            pool.tasks[0].set_result(TaskOutcome("compiled", seconds=14.0, on_start=12.0))
        now[0] += 7.0
        yield Turn(None, TOO_LONG)

    store = SimpleNamespace(entry=lambda *of: None, take_turn=take_turn)
    helpers, ask = PoolHelpers(store, pool), make_ask()  # type: ignore[arg-type]
    assert helpers.hand_over([ask]) == 1
    assert helpers.wait_for(ask.key) == Wait(beside=True, on_start=12.0)
